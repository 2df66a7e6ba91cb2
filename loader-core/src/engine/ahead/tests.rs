use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::prelude::*;

fn loader(samples: usize) -> DataLoader<Tensor<i64>> {
    let numbers = Tensor::from_vec((0..samples as i64).collect(), [samples]).unwrap();
    DataLoader::builder(TensorDataset::new(numbers).unwrap())
        .batch_size(4)
        .shuffle(true)
        .seed(1)
        .build()
        .unwrap()
}

#[test]
fn batches_states_and_the_report_are_those_of_the_iterator() {
    let loader = loader(18);
    let mut plain = loader.epoch(3).unwrap();
    let mut ahead = loader.epoch(3).unwrap().convert_ahead(3, |batch| Ok(batch.as_slice().to_vec())).unwrap();
    assert_eq!((ahead.epoch(), ahead.state(), ahead.last_batch()), (3, plain.state(), None));
    loop {
        assert_eq!(ahead.size_hint(), plain.size_hint());
        let (expected, found) = (plain.next(), ahead.next());
        assert_eq!((ahead.state(), ahead.last_batch()), (plain.state(), plain.last_batch()));
        let Some(expected) = expected else {
            assert!(found.is_none() && ahead.next().is_none());
            break;
        };
        assert!(ahead.report().is_none());
        assert_eq!(expected.unwrap().as_slice(), found.unwrap().unwrap());
    }
    assert_eq!(ahead.report().map(|report| (report.batches, report.samples)), Some((5, 18)));
}

#[test]
fn a_state_resumes_after_the_batch_that_was_taken() {
    let loader = loader(40);
    let mut ahead = loader.iter().unwrap().convert_ahead(5, Ok).unwrap();
    let taken: Vec<_> = ahead.by_ref().take(3).map(Result::unwrap).collect();
    let state = ahead.state();
    drop(ahead);
    let rest = loader.resume(&state).unwrap().map(Result::unwrap);
    let all: Vec<_> = taken.into_iter().chain(rest).collect();
    assert_eq!(all, loader.epoch(0).unwrap().map(Result::unwrap).collect::<Vec<_>>());
}

#[test]
fn no_more_batches_are_converted_than_asked_for() {
    let loader = loader(400);
    let converted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&converted);
    let count = move |batch| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(batch)
    };
    let mut ahead = loader.iter().unwrap().convert_ahead(2, count).unwrap();
    for taken in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while converted.load(Ordering::SeqCst) < taken + 3 {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        assert_eq!(converted.load(Ordering::SeqCst), taken + 3, "two are ready, and the thread has one");
        ahead.next().unwrap().unwrap();
    }
}

#[test]
fn an_error_or_a_panic_of_the_function_loses_its_batch_only() {
    let loader = loader(20);
    let mut number = 0;
    let convert = move |batch| {
        number += 1;
        match number {
            2 => anyhow::bail!("no such device"),
            4 => panic!("out of memory"),
            _ => Ok(batch),
        }
    };
    let ahead = loader.iter().unwrap().convert_ahead(1, convert).unwrap();
    let results: Vec<_> = ahead.map(|result| result.map(|_| ()).map_err(|error| error.to_string())).collect();
    let failed = |text: &str| Err(format!("the conversion {text}"));
    assert_eq!(
        results,
        [
            Ok(()),
            failed("failed on batch 1: no such device"),
            Ok(()),
            failed("panicked on batch 3: out of memory"),
            Ok(())
        ]
    );
}

#[test]
fn nothing_is_kept_ready_with_depth_0() {
    let error = loader(20).iter().unwrap().convert_ahead(0, Ok).unwrap_err();
    assert!(matches!(error, Error::InvalidOption { option: "depth", .. }), "{error}");
}

#[test]
fn a_drop_ends_the_thread_and_drops_what_is_ready() {
    let loader = loader(400);
    let owner = Arc::new(());
    let copy = Arc::clone(&owner);
    let mut ahead = loader.iter().unwrap().convert_ahead(2, move |_| Ok(Arc::clone(&copy))).unwrap();
    let first = ahead.next().unwrap().unwrap();
    drop(ahead);
    drop(first);
    assert_eq!(Arc::strong_count(&owner), 1);
}

/// A runtime that drops a task when it is woken also drops the stream, whose drop closes the queue.
#[cfg(feature = "stream")]
#[test]
fn a_waker_may_close_the_queue() {
    use std::task::{Context, Wake, Waker};

    struct Closer(Arc<Queue<u8>>);

    impl Wake for Closer {
        fn wake(self: Arc<Self>) {
            self.0.close();
        }
    }

    let queue = Arc::new(Queue::new(1));
    let waker = Waker::from(Arc::new(Closer(Arc::clone(&queue))));
    assert!(queue.poll_receive(&Context::from_waker(&waker)).is_pending());
    drop(waker);
    let sender = thread::spawn(move || (queue.send(1), queue.send(2)));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !sender.is_finished() {
        assert!(Instant::now() < deadline, "the sender waits for itself");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sender.join().unwrap(), (true, false));
}
