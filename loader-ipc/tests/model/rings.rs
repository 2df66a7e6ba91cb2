//! The ring: frames are seen at once, whole and in order, also where they go round its end.

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

/// Two words and a bit, all of which say which frame it is.
fn frame(number: u8) -> [u8; 12] {
    [number; 12]
}

#[test]
fn a_frame_is_seen_at_once_and_whole() {
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

/// Three words a frame in a ring of four: the second waits for the first, and lies around the end.
#[test]
fn a_place_is_written_again_only_when_it_was_read() {
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
