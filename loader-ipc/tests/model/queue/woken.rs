//! Sleeping and waking: if a frame is sent while the receiver goes to sleep, either the receiver sees it, or
//! the sender wakes the receiver. A lost wake-up shows as a deadlock, because no time passes in a model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use loom::{sync::mpsc, thread};

use super::{
    wait::{Receive, must_wake, wait},
    wakeup_gate::{WakeupGate, note_received},
};
use crate::{
    atomic::AtomicU64,
    channel::ReceiveError,
    check,
    ring::{RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

const ASLEEP: usize = RING_WORDS;
const RECEIVED_WAKEUP: usize = ASLEEP + 1;
/// First word of the ring of a second sender.
const SECOND: usize = RECEIVED_WAKEUP + 1;
const WORDS: usize = SECOND + RING_WORDS;

/// A receiver that waits for frames of its rings. A wake-up is either the number of a wake-up, as for a
/// worker, or 0, as for main.
struct Sleeper {
    memory: Arc<SharedWords>,
    rings: Vec<RingReader>,
    woken: mpsc::Receiver<u64>,
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
        let number = self.woken.recv().map_err(|_| ReceiveError::Closed)?;
        if number != 0 {
            note_received(&self.memory.words()[RECEIVED_WAKEUP], number);
        }
        Ok(())
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
        let memory = Arc::new(SharedWords::new(WORDS));
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
                    wake.send(0).unwrap();
                }
            }
            // The channel stays open, because its end would wake the receiver too.
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
        let memory = Arc::new(SharedWords::new(WORDS));
        let (wake, woken) = mpsc::channel();
        let rings = [0, SECOND].map(|first| RingReader::new(Arc::clone(&memory), first)).into();
        let mut sleeper = Sleeper { memory: Arc::clone(&memory), rings, woken };
        let senders = [(0, 1), (SECOND, 2)].map(|(first, number)| {
            let (memory, wake) = (Arc::clone(&memory), wake.clone());
            thread::spawn(move || {
                let mut ring = RingWriter::new(Arc::clone(&memory), first);
                assert!(ring.write(&[number]));
                if must_wake(&memory.words()[ASLEEP]) {
                    wake.send(0).unwrap();
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

/// A sender is killed after it has marked the receiver as awake and before it wakes it. The end of its
/// channel must wake the receiver, for the sender's own frame and for the frame of another sender, which
/// finds the receiver marked as awake.
#[test]
fn no_wake_up_is_lost_with_a_sender_that_is_killed() {
    check(3, || {
        let memory = Arc::new(SharedWords::new(WORDS));
        let (wake, woken) = mpsc::channel();
        let rings = [0, SECOND].map(|first| RingReader::new(Arc::clone(&memory), first)).into();
        let mut sleeper = Sleeper { memory: Arc::clone(&memory), rings, woken };
        let killed = thread::spawn({
            let (memory, wake) = (Arc::clone(&memory), Ending(wake.clone()));
            move || {
                let mut ring = RingWriter::new(Arc::clone(&memory), 0);
                assert!(ring.write(&[1]));
                must_wake(&memory.words()[ASLEEP]);
                // The system closes the channel of the killed sender.
                drop(wake);
            }
        });
        let other = thread::spawn({
            let (memory, wake) = (Arc::clone(&memory), wake.clone());
            move || {
                let mut ring = RingWriter::new(Arc::clone(&memory), SECOND);
                assert!(ring.write(&[2]));
                if must_wake(&memory.words()[ASLEEP]) {
                    wake.send(0).unwrap();
                }
            }
        });
        let mut seen = [(); 2].map(|()| wait(&mut sleeper, never()).unwrap());
        seen.sort();
        assert_eq!(seen, [1, 2]);
        killed.join().unwrap();
        other.join().unwrap();
        drop(wake);
    });
}

/// A sender's side of a channel of its own; closing it wakes the receiver.
struct Ending(mpsc::Sender<u64>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.send(0).unwrap();
    }
}

/// Main sends three commands to a worker, and sends a wake-up only if the worker has received the last one.
/// No command is lost, and the channel never holds two wake-ups.
#[test]
fn one_pending_wake_up_is_enough() {
    check(3, || {
        let memory = Arc::new(SharedWords::new(WORDS));
        let (ring, woken) = mpsc::channel();
        let mut commands = RingWriter::new(Arc::clone(&memory), 0);
        let rings = vec![RingReader::new(Arc::clone(&memory), 0)];
        let mut sleeper = Sleeper { memory: Arc::clone(&memory), rings, woken };
        let sending = thread::spawn(move || {
            let mut gate = WakeupGate::default();
            for number in 1..=3 {
                while !commands.write(&[number]) {
                    thread::yield_now();
                }
                let words = memory.words();
                if let Some(number) = gate.next(&words[ASLEEP], &words[RECEIVED_WAKEUP]) {
                    ring.send(number).unwrap();
                }
            }
            ring
        });
        for number in 1..=3 {
            assert_eq!(wait(&mut sleeper, never()), Ok(number));
        }
        drop(sending.join().unwrap());
        assert!(sleeper.woken.try_recv().is_err() || sleeper.woken.try_recv().is_err());
    });
}
