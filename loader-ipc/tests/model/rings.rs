//! The ring: each frame becomes visible as a whole and in order, even if it wraps around the end.

use std::sync::Arc;

use loom::thread;

use crate::{
    check,
    ring::{RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

fn ring() -> (RingWriter, RingReader) {
    let memory = Arc::new(SharedWords::new(RING_WORDS));
    (RingWriter::new(Arc::clone(&memory), 0), RingReader::new(memory, 0))
}

/// A frame of one and a half words, in which each byte is `number`.
fn frame(number: u8) -> [u8; 12] {
    [number; 12]
}

#[test]
fn a_frame_becomes_visible_as_a_whole() {
    check(5, || {
        let (mut writer, mut reader) = ring();
        let writing = thread::spawn(move || assert!(writer.write(&frame(1))));
        let mut read = Vec::new();
        if reader.read(&mut read).unwrap() {
            assert_eq!(read, frame(1));
        }
        writing.join().unwrap();
        assert!(reader.is_empty() || reader.read(&mut read) == Ok(true));
        assert_eq!(read, frame(1));
    });
}

/// A frame takes three of the ring's four words: the second frame waits until the first was read, and wraps
/// around the end.
#[test]
fn a_word_is_overwritten_only_after_it_was_read() {
    check(5, || {
        let (mut writer, mut reader) = ring();
        assert!(writer.write(&frame(1)));
        let writing = thread::spawn(move || {
            while !writer.write(&frame(2)) {
                thread::yield_now();
            }
        });
        let mut read = Vec::new();
        for number in 1..=2 {
            while !reader.read(&mut read).unwrap() {
                thread::yield_now();
            }
            assert_eq!(read, frame(number));
        }
        writing.join().unwrap();
        assert!(reader.is_empty());
    });
}
