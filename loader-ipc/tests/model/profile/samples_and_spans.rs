//! What a worker measures: main reads samples and spans whole while the worker writes others over them.

use std::{sync::Arc, time::Duration};

use loom::thread;

use super::{
    slowest::{self, SlowSample},
    spans::{self, Span, SpanKind},
};
use crate::{check, sys::SharedWords};

/// A sample of which each value follows from `number`.
fn sample(number: u64) -> SlowSample {
    let time = Duration::from_nanos(number);
    SlowSample { epoch: 1, batch: number, shard: Some(number as u32), index: number, time }
}

/// There is memory for one sample, so the second one is written over the first.
#[test]
fn a_slow_sample_is_read_whole_or_not_at_all() {
    check(5, || {
        let memory = Arc::new(SharedWords::new(slowest::WORDS));
        slowest::note(memory.words(), sample(1));
        let written = Arc::clone(&memory);
        let writing = thread::spawn(move || slowest::note(written.words(), sample(2)));
        let read = slowest::read(memory.words(), 1);
        assert!(read.is_empty() || read == [sample(1)] || read == [sample(2)], "{read:?}");
        writing.join().unwrap();
        assert_eq!(slowest::read(memory.words(), 1), [sample(2)]);
    });
}

/// A span of which each value follows from `number`.
fn span(number: u64) -> Span {
    let kind = [SpanKind::Batch, SpanKind::Sample, SpanKind::Encode][number as usize];
    Span { kind, start: number, time: Duration::from_nanos(number), task: number, detail: number }
}

/// The ring has two spans, so the third one is written over the first.
#[test]
fn a_span_is_read_whole_and_once_or_not_at_all() {
    check(4, || {
        let memory = Arc::new(SharedWords::new(spans::WORDS));
        spans::push(memory.words(), span(0));
        let written = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            spans::push(written.words(), span(1));
            spans::push(written.words(), span(2));
        });
        let (mut read, next) = spans::read(memory.words(), 0);
        writing.join().unwrap();
        let (rest, end) = spans::read(memory.words(), next);
        read.extend(rest);
        assert_eq!(end, 3);
        let numbers: Vec<_> = read.iter().map(|read| read.start).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{read:?}");
        assert_eq!(read, numbers.into_iter().map(span).collect::<Vec<_>>());
        assert_eq!(read.last(), Some(&span(2)));
    });
}
