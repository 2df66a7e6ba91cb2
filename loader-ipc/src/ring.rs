//! A ring of frames in shared memory, from one process to one other.
//!
//! A frame is a word with its length and then its bytes, eight to a word; positions count words and never wrap. Each side keeps
//! its own position to itself and believes of the other's only what can be true: a peer that writes nonsense gets an error, and
//! what it writes after a frame was copied out changes nothing.
//!
//! A frame becomes visible at once and as a whole, by one store: a writer that is killed half-way has written nothing.

use std::sync::Arc;

use crate::{
    atomic::{AtomicU64, Ordering},
    sys::SharedWords,
};

/// Largest frame in bytes.
pub const MAX_FRAME: usize = if cfg!(loom) { 16 } else { 40 * 1024 };

/// Words of frames in a ring: 64 KiB, or so few that a model goes round soon. A power of two.
const CAPACITY: u64 = if cfg!(loom) { 4 } else { 8 * 1024 };
/// Words that a ring takes: two lines of cache for the positions, one for each side, then the frames.
pub(crate) const RING_WORDS: usize = FRAMES + CAPACITY as usize;

/// Words in a line of cache.
const LINE: usize = 8;
const READ: usize = 0;
const WRITTEN: usize = LINE;
const FRAMES: usize = 2 * LINE;

const _: () = assert!(words_of(MAX_FRAME) <= CAPACITY && CAPACITY.is_power_of_two());

/// A ring's place in shared memory.
#[derive(Debug, Clone)]
struct Place {
    memory: Arc<SharedWords>,
    first: usize,
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct RingWriter {
    place: Place,
    written: u64,
    /// The reader's position when it was last looked at.
    read: u64,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct RingReader {
    place: Place,
    read: u64,
    /// What was read makes no sense; nothing more is read.
    broken: bool,
}

/// What lies in a ring is no frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("what lies in its ring is no frame")]
pub(crate) struct Nonsense;

impl RingWriter {
    /// The ring that begins at word `first`; there must be one writer.
    pub(crate) fn new(memory: Arc<SharedWords>, first: usize) -> Self {
        Self { place: Place { memory, first }, written: 0, read: 0 }
    }

    /// Writes a frame of at most [`MAX_FRAME`] bytes; false when there is no room yet.
    pub(crate) fn write(&mut self, frame: &[u8]) -> bool {
        let wanted = words_of(frame.len());
        if self.written - self.read + wanted > CAPACITY {
            // Acquire: what the reader did with the words before is over when they are written again.
            let read = self.place.word(READ).load(Ordering::Acquire);
            // A reader that lies gets no more room than there is.
            if read >= self.read && read <= self.written {
                self.read = read;
            }
            if self.written - self.read + wanted > CAPACITY {
                return false;
            }
        }
        // Relaxed: all of it becomes visible by the store below.
        self.place.frame_word(self.written).store(frame.len() as u64, Ordering::Relaxed);
        let (whole, rest) = frame.as_chunks();
        for (position, bytes) in (self.written + 1..).zip(whole) {
            self.place.frame_word(position).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; size_of::<u64>()];
            last[..rest.len()].copy_from_slice(rest);
            self.place
                .frame_word(self.written + wanted - 1)
                .store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.written += wanted;
        // Release: who sees the position sees the frame.
        self.place.word(WRITTEN).store(self.written, Ordering::Release);
        true
    }
}

impl RingReader {
    /// The ring that begins at word `first`; there must be one reader.
    pub(crate) fn new(memory: Arc<SharedWords>, first: usize) -> Self {
        Self { place: Place { memory, first }, read: 0, broken: false }
    }

    /// True when there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.broken || self.written() == self.read
    }

    /// Copies the next frame to `frame`, in place of what is there; false when there is none.
    ///
    /// # Errors
    /// [`Nonsense`], once; after that the ring is empty.
    pub(crate) fn read(&mut self, frame: &mut Vec<u8>) -> Result<bool, Nonsense> {
        if self.is_empty() {
            return Ok(false);
        }
        let there = self.written().wrapping_sub(self.read);
        // Relaxed: `written` was an Acquire.
        let len = self.place.frame_word(self.read).load(Ordering::Relaxed);
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_FRAME && words_of(len) <= there);
        let Some(len) = len.filter(|_| there <= CAPACITY) else {
            self.broken = true;
            return Err(Nonsense);
        };
        frame.clear();
        for position in self.read + 1..self.read + words_of(len) {
            let word = self.place.frame_word(position).load(Ordering::Relaxed);
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.truncate(len);
        self.read += words_of(len);
        // Release: the words are copied before the writer may use them again.
        self.place.word(READ).store(self.read, Ordering::Release);
        Ok(true)
    }

    /// Reads nothing more: what was read is nonsense to whoever knows what frames mean.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    fn written(&self) -> u64 {
        // Acquire: pairs with the Release in `write`.
        self.place.word(WRITTEN).load(Ordering::Acquire)
    }
}

impl Place {
    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.memory.words()[self.first + offset]
    }

    fn frame_word(&self, position: u64) -> &AtomicU64 {
        // The remainder is below the capacity, which is a `usize`.
        self.word(FRAMES + (position % CAPACITY) as usize)
    }
}

/// Words that a frame of `len` bytes takes, its length included.
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
    fn nonsense_is_an_error_once() {
        let lies: [fn(&Place, u64); 4] = [
            |place, _| place.frame_word(0).store(MAX_FRAME as u64 + 1, Ordering::Relaxed),
            |place, _| place.frame_word(0).store(u64::MAX, Ordering::Relaxed),
            |place, _| place.frame_word(0).store(17, Ordering::Relaxed),
            |place, _| place.word(WRITTEN).store(CAPACITY + 1, Ordering::Relaxed),
        ];
        for lie in lies {
            let (mut writer, mut reader, memory) = ring();
            assert!(writer.write(b"sixteen bytes...."[..16].as_ref()));
            lie(&Place { memory, first: 0 }, 0);
            assert_eq!(reader.read(&mut Vec::new()), Err(Nonsense));
            assert!(reader.is_empty());
            assert_eq!(reader.read(&mut Vec::new()), Ok(false));
        }
    }

    #[test]
    fn a_reader_that_lies_gets_no_room_that_is_not_there() {
        let (mut writer, _reader, memory) = ring();
        while writer.write(&[7; 1000]) {}
        for lie in [u64::MAX, CAPACITY * 2, 0] {
            (Place { memory: Arc::clone(&memory), first: 0 }).word(READ).store(lie, Ordering::Relaxed);
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
