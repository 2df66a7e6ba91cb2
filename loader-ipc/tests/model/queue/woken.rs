//! Sleeping and waking: a frame that is sent to a receiver that goes to sleep is either seen or rung for. A wake-up that is lost shows
//! as a deadlock, since no time passes in a model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use loom::{sync::mpsc, thread};

use super::wait::{Receive, must_wake, wait};
use crate::{
    atomic::AtomicU64,
    channel::ReceiveError,
    check,
    ring::{RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

const ASLEEP: usize = RING_WORDS;

/// Main as it waits for reports: a ring, and a channel that anybody rings.
struct Sleeper {
    memory: Arc<SharedWords>,
    rings: Vec<RingReader>,
    woken: mpsc::Receiver<()>,
}

impl Receive for Sleeper {
    type Frame = u8;
    type Error = ReceiveError;

    fn look(&mut self) -> Result<Option<u8>, ReceiveError> {
        let mut frame = Vec::new();
        for ring in &mut self.rings {
            if ring.read(&mut frame).unwrap() {
                return Ok(Some(frame[0]));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, _: Instant) -> Result<(), ReceiveError> {
        self.woken.recv().map_err(|_| ReceiveError::Closed)
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.memory.words()[ASLEEP]
    }
}

fn never() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn no_wake_up_is_lost() {
    check(5, || {
        let memory = Arc::new(SharedWords::new(RING_WORDS + 1));
        let (wake, woken) = mpsc::channel();
        let mut ring = RingWriter::new(Arc::clone(&memory), 0);
        let rings = vec![RingReader::new(Arc::clone(&memory), 0)];
        let mut sleeper = Sleeper { memory: Arc::clone(&memory), rings, woken };
        let sending = thread::spawn(move || {
            for number in 1..=2 {
                while !ring.write(&[number]) {
                    thread::yield_now();
                }
                if must_wake(&memory.words()[ASLEEP]) {
                    wake.send(()).unwrap();
                }
            }
            // Kept open: an end would wake as well.
            wake
        });
        assert_eq!(wait(&mut sleeper, never()), Ok(1));
        assert_eq!(wait(&mut sleeper, never()), Ok(2));
        drop(sending.join().unwrap());
    });
}

#[test]
fn no_wake_up_is_lost_between_two_senders() {
    check(4, || {
        let memory = Arc::new(SharedWords::new(2 * RING_WORDS + 1));
        let (wake, woken) = mpsc::channel();
        let rings = [0, RING_WORDS + 1].map(|first| RingReader::new(Arc::clone(&memory), first)).into();
        let mut sleeper = Sleeper { memory: Arc::clone(&memory), rings, woken };
        let senders = [(0, 1), (RING_WORDS + 1, 2)].map(|(first, number)| {
            let (memory, wake) = (Arc::clone(&memory), wake.clone());
            thread::spawn(move || {
                let mut ring = RingWriter::new(Arc::clone(&memory), first);
                assert!(ring.write(&[number]));
                if must_wake(&memory.words()[ASLEEP]) {
                    wake.send(()).unwrap();
                }
            })
        });
        let mut seen = [(); 2].map(|()| wait(&mut sleeper, never()).unwrap());
        seen.sort();
        assert_eq!(seen, [1, 2]);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        drop(wake);
    });
}
