//! Samplers that panic or give indices which the dataset does not have.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use loader_core::{Error, prelude::*, sampler::Epoch};
use loader_tests::{Watchdog, datasets::Count};

/// Gives `len` indices. Panics instead of giving index `panics_at`; for 0, before it gives any.
#[derive(Debug)]
struct BadSampler {
    len: usize,
    panics_at: Option<usize>,
}

impl Sampler for BadSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let panics_at = self.panics_at;
        assert_ne!(panics_at, Some(0), "the sampler panics");
        Box::new(
            (0..self.len).inspect(move |&index| assert_ne!(Some(index), panics_at, "the sampler panics")),
        )
    }
}

#[test]
fn an_index_out_of_range_loses_its_batch_only() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let sampler = BadSampler { len: 11, panics_at: None };
        let builder = DataLoader::builder(Count(10)).batch_size(2).sampler(sampler);
        let batches: Vec<_> = builder.num_workers(workers).build().unwrap().iter().unwrap().collect();
        assert_eq!((batches.len(), batches.iter().filter(|batch| batch.is_ok()).count()), (6, 5));
        let Err(Error::IndexOutOfRange { index: 10, batch: 5, len: 10 }) = &batches[5] else {
            panic!("{:?}", batches[5])
        };
    }
}

// PyTorch: X24, N06
#[test]
fn a_panic_of_the_sampler_ends_the_epoch_in_the_place_of_its_batch() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1] {
        for panics_at in [0, 5] {
            let sampler = BadSampler { len: 10, panics_at: Some(panics_at) };
            let loader =
                DataLoader::builder(Count(10)).num_workers(workers).sampler(sampler).build().unwrap();
            let mut batches = loader.iter().unwrap();
            assert_eq!(batches.by_ref().take(panics_at).filter(Result::is_ok).count(), panics_at);
            let error = batches.next().unwrap().unwrap_err();
            let Error::SamplerPanicked { batch, message } = &error else { panic!("{error:?}") };
            assert_eq!(*batch, panics_at as u64);
            assert!(message.contains("the sampler panics"), "{message}");
            assert!(batches.next().is_none());
            // The batches that the sampler has not given are still to be loaded.
            let sampler = BadSampler { len: 10, panics_at: None };
            let builder = DataLoader::builder(Count(10)).num_workers(workers).sampler(sampler);
            let rest = builder.build().unwrap().resume(&batches.state()).unwrap();
            let rest: Vec<u64> = rest.map(|batch| batch.unwrap().as_slice()[0]).collect();
            assert_eq!(rest, (panics_at as u64..10).collect::<Vec<_>>());
        }
    }
}

/// Counts how many batches it has given.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Sampler for Counted {
    fn len(&self) -> usize {
        4
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let given = Arc::clone(&self.0);
        Box::new((0..4).inspect(move |_| {
            given.fetch_add(1, Ordering::Relaxed);
        }))
    }
}

#[test]
fn without_workers_each_batch_is_taken_from_the_sampler_when_the_program_asks_for_it() {
    let given = Arc::new(AtomicUsize::new(0));
    let loader = DataLoader::builder(Count(4)).sampler(Counted(Arc::clone(&given))).build().unwrap();
    let mut batches = loader.iter().unwrap();
    for taken in 0..4 {
        assert_eq!(given.load(Ordering::Relaxed), taken);
        let state = batches.state();
        assert_eq!(loader.resume(&state).unwrap().count(), 4 - taken);
        given.store(taken, Ordering::Relaxed);
        batches.next().unwrap().unwrap();
    }
}
