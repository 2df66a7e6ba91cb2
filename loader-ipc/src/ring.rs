//! A ring of frames in shared memory, from one process to one other process.
//!
//! A frame is one word with its length in bytes, followed by its bytes, eight to a word. Positions count
//! words and never wrap. Each side keeps its own position in private memory, and checks the other side's
//! position and lengths before it uses them: an invalid frame is an error. A frame is copied out before it is
//! decoded, so later writes of the peer do not change it.
//!
//! One store makes a whole frame visible. A writer that is killed while it writes a frame has written
//! nothing.

use std::sync::Arc;

use crate::{
    atomic::{AtomicU64, Ordering},
    sys::SharedWords,
};

/// Maximum size of a frame in bytes.
pub const MAX_FRAME: usize = if cfg!(loom) { 16 } else { 40 * 1024 };

/// Words for frames in a ring: 64 KiB; in a loom model so few that a model wraps around soon. A power of two.
const CAPACITY: u64 = if cfg!(loom) { 4 } else { 8 * 1024 };
/// Words in a ring: one cache line for the position of each side, then the frames.
pub(crate) const RING_WORDS: usize = FRAMES + CAPACITY as usize;

/// Words in a cache line.
const LINE: usize = 8;
const READ: usize = 0;
const WRITTEN: usize = LINE;
const FRAMES: usize = 2 * LINE;

const _: () = assert!(words_of(MAX_FRAME) <= CAPACITY && CAPACITY.is_power_of_two());

/// The words of a ring: those of `memory` from word `first` on.
#[derive(Debug, Clone)]
struct Ring {
    memory: Arc<SharedWords>,
    first: usize,
}

/// The writer's end of a ring.
#[derive(Debug)]
pub(crate) struct RingWriter {
    ring: Ring,
    written: u64,
    /// The reader's position as last loaded.
    read: u64,
}

/// The reader's end of a ring.
#[derive(Debug)]
pub(crate) struct RingReader {
    ring: Ring,
    read: u64,
    /// True after an invalid frame: nothing more is read.
    is_broken: bool,
}

/// The next frame of a ring is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("its ring holds an invalid frame")]
pub(crate) struct InvalidFrame;

impl RingWriter {
    /// The writer's end of the ring that begins at word `first`. A ring must have only one writer.
    pub(crate) fn new(memory: Arc<SharedWords>, first: usize) -> Self {
        Self { ring: Ring { memory, first }, written: 0, read: 0 }
    }

    /// Writes a frame of at most [`MAX_FRAME`] bytes. False if there is not enough room yet.
    pub(crate) fn write(&mut self, frame: &[u8]) -> bool {
        let wanted = words_of(frame.len());
        if self.written - self.read + wanted > CAPACITY {
            // Acquire: the reader has copied the words out before they are written again. Pairs with the
            // Release in `read`.
            let read = self.ring.word(READ).load(Ordering::Acquire);
            // An impossible position is ignored: a faulty reader must not make more room than the ring has.
            if read >= self.read && read <= self.written {
                self.read = read;
            }
            if self.written - self.read + wanted > CAPACITY {
                return false;
            }
        }
        // Relaxed: the Release below makes the whole frame visible.
        self.ring.frame_word(self.written).store(frame.len() as u64, Ordering::Relaxed);
        let (whole, rest) = frame.as_chunks();
        for (position, bytes) in (self.written + 1..).zip(whole) {
            self.ring.frame_word(position).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; size_of::<u64>()];
            last[..rest.len()].copy_from_slice(rest);
            self.ring
                .frame_word(self.written + wanted - 1)
                .store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.written += wanted;
        // Release: a reader that sees the position sees the frame.
        self.ring.word(WRITTEN).store(self.written, Ordering::Release);
        true
    }
}

impl RingReader {
    /// The reader's end of the ring that begins at word `first`. A ring must have only one reader.
    pub(crate) fn new(memory: Arc<SharedWords>, first: usize) -> Self {
        Self { ring: Ring { memory, first }, read: 0, is_broken: false }
    }

    /// True if there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_broken || self.written() == self.read
    }

    /// Replaces the contents of `frame` by the next frame. False if there is none.
    ///
    /// # Errors
    /// [`InvalidFrame`], once; afterwards the ring reads as empty.
    pub(crate) fn read(&mut self, frame: &mut Vec<u8>) -> Result<bool, InvalidFrame> {
        if self.is_empty() {
            return Ok(false);
        }
        let there = self.written().wrapping_sub(self.read);
        // Relaxed: `written` loaded the position with Acquire.
        let len = self.ring.frame_word(self.read).load(Ordering::Relaxed);
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_FRAME && words_of(len) <= there);
        let Some(len) = len.filter(|_| there <= CAPACITY) else {
            self.is_broken = true;
            return Err(InvalidFrame);
        };
        frame.clear();
        for position in self.read + 1..self.read + words_of(len) {
            let word = self.ring.frame_word(position).load(Ordering::Relaxed);
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.truncate(len);
        self.read += words_of(len);
        // Release: the words are copied out before the writer may write them again.
        self.ring.word(READ).store(self.read, Ordering::Release);
        Ok(true)
    }

    /// Reads nothing more. For callers that find that a frame's contents are invalid.
    pub(crate) fn stop_reading(&mut self) {
        self.is_broken = true;
    }

    fn written(&self) -> u64 {
        // Acquire: pairs with the Release in `write`.
        self.ring.word(WRITTEN).load(Ordering::Acquire)
    }
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.memory.words()[self.first + offset]
    }

    fn frame_word(&self, position: u64) -> &AtomicU64 {
        // The cast is exact: the remainder is less than the capacity, which fits a `usize`.
        self.word(FRAMES + (position % CAPACITY) as usize)
    }
}

/// Words that a frame of `len` bytes takes, including its length.
const fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(size_of::<u64>()) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{collections::VecDeque, num::NonZeroUsize, thread};

    use proptest::prelude::*;

    use super::*;

    fn ring() -> (RingWriter, RingReader, Arc<SharedWords>) {
        let words = NonZeroUsize::new(RING_WORDS).unwrap();
        let memory = Arc::new(SharedWords::of_this_process(words).unwrap());
        (RingWriter::new(Arc::clone(&memory), 0), RingReader::new(Arc::clone(&memory), 0), memory)
    }

    #[test]
    fn frames_between_two_threads_arrive_whole_and_in_order() {
        const FRAMES: u64 = 50_000;
        let (mut writer, mut reader, _) = ring();
        let frame = |number: u64| -> Vec<u8> { (0..number % 97).map(|byte| (byte ^ number) as u8).collect() };
        let writing = thread::spawn(move || {
            for number in 0..FRAMES {
                while !writer.write(&frame(number)) {
                    thread::yield_now();
                }
            }
        });
        let mut read = Vec::new();
        for number in 0..FRAMES {
            while !reader.read(&mut read).unwrap() {
                thread::yield_now();
            }
            assert_eq!(read, frame(number));
        }
        writing.join().unwrap();
        assert!(reader.is_empty());
    }

    #[test]
    fn an_invalid_frame_is_an_error_once() {
        let corruptions: [fn(&Ring, u64); 4] = [
            |ring, _| ring.frame_word(0).store(MAX_FRAME as u64 + 1, Ordering::Relaxed),
            |ring, _| ring.frame_word(0).store(u64::MAX, Ordering::Relaxed),
            |ring, _| ring.frame_word(0).store(17, Ordering::Relaxed),
            |ring, _| ring.word(WRITTEN).store(CAPACITY + 1, Ordering::Relaxed),
        ];
        for corrupt in corruptions {
            let (mut writer, mut reader, memory) = ring();
            assert!(writer.write(b"sixteen bytes...."[..16].as_ref()));
            corrupt(&Ring { memory, first: 0 }, 0);
            assert_eq!(reader.read(&mut Vec::new()), Err(InvalidFrame));
            assert!(reader.is_empty());
            assert_eq!(reader.read(&mut Vec::new()), Ok(false));
        }
    }

    #[test]
    fn an_impossible_position_of_the_reader_makes_no_room() {
        let (mut writer, _reader, memory) = ring();
        while writer.write(&[7; 1000]) {}
        for position in [u64::MAX, CAPACITY * 2, 0] {
            (Ring { memory: Arc::clone(&memory), first: 0 }).word(READ).store(position, Ordering::Relaxed);
            assert!(!writer.write(&[7; 1000]));
        }
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(steps in prop::collection::vec((any::<bool>(), 0usize..MAX_FRAME), 1..200)) {
            let (mut writer, mut reader, _) = ring();
            let (mut model, mut used, mut read) = (VecDeque::new(), 0, Vec::new());
            for (number, (is_write, len)) in steps.into_iter().enumerate() {
                if is_write {
                    let frame = vec![number as u8; len];
                    let fits = used + words_of(len) <= CAPACITY;
                    prop_assert_eq!(writer.write(&frame), fits);
                    if fits {
                        used += words_of(len);
                        model.push_back(frame);
                    }
                } else {
                    prop_assert_eq!(reader.is_empty(), model.is_empty());
                    let expected = model.pop_front();
                    prop_assert_eq!(reader.read(&mut read).unwrap(), expected.is_some());
                    if let Some(expected) = expected {
                        used -= words_of(expected.len());
                        prop_assert_eq!(&read, &expected);
                    }
                }
            }
        }
    }
}
