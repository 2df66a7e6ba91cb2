//! A ring of the last spans of a worker: what it did, from when to when.

use std::time::Duration;

use crate::atomic::{AtomicU64, Ordering, fence};

/// Number of spans that the ring holds.
const KEPT: u64 = if cfg!(loom) { 2 } else { 1024 };
/// Words of a span.
const ENTRY: usize = 4;
/// The number of spans written so far, and the ring. The ring begins at a cache line.
pub(super) const WORDS: usize = RING + KEPT as usize * ENTRY;
const RING: usize = 8;

/// Bits of the word that has the kind and the length of a span.
const KIND_SHIFT: u32 = 56;

/// One action of a worker, with its start and duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The action.
    pub kind: SpanKind,
    /// When it began, as [`now`](super::now) gives the time.
    pub start: u64,
    /// How long it took.
    pub time: Duration,
    /// Number of the task that loaded the batch.
    pub task: u64,
    /// For a sample, its index or its position in the shard; otherwise the number of samples of the batch.
    pub detail: u64,
}

/// The action of a [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanKind {
    /// A batch, from the task to the report.
    Batch,
    /// The dataset returned a sample.
    Sample,
    /// The worker encoded a batch.
    Encode,
}

/// Writes a span over the oldest one.
pub(super) fn push(words: &[AtomicU64], span: Span) {
    let number = words[0].load(Ordering::Relaxed);
    // Release: a reader that sees one of the following values sees this number afterwards, or a later one.
    fence(Ordering::Release);
    let at = RING + (number % KEPT) as usize * ENTRY;
    let nanos = super::nanos(span.time).min((1 << KIND_SHIFT) - 1);
    words[at].store(span.start, Ordering::Relaxed);
    words[at + 1].store((span.kind as u64) << KIND_SHIFT | nanos, Ordering::Relaxed);
    words[at + 2].store(span.task, Ordering::Relaxed);
    words[at + 3].store(span.detail, Ordering::Relaxed);
    // Release: a reader that sees the number sees the span.
    words[0].store(number.wrapping_add(1), Ordering::Release);
}

/// Returns the spans from number `from` on that the ring still holds, and the number of the next span.
pub(super) fn read(words: &[AtomicU64], from: u64) -> (Vec<Span>, u64) {
    // Acquire: pairs with the release of `push`.
    let end = words[0].load(Ordering::Acquire);
    if end < from {
        // A worker that has failed has written the number.
        return (Vec::new(), end);
    }
    let first = from.max(end.saturating_sub(KEPT));
    let spans: Vec<_> = (first..end).map(|number| span(words, number)).collect();
    // Acquire: pairs with the fence of `push`.
    fence(Ordering::Acquire);
    let end_after = words[0].load(Ordering::Relaxed);
    // The worker may have overwritten spans meanwhile, and may be writing one more.
    let valid_from = end_after.saturating_add(1).saturating_sub(KEPT).clamp(first, end);
    (spans.into_iter().skip((valid_from - first) as usize).flatten().collect(), end)
}

/// Reads a span; `None` if its kind is invalid.
fn span(words: &[AtomicU64], number: u64) -> Option<Span> {
    let at = RING + (number % KEPT) as usize * ENTRY;
    let load = |word: usize| words[at + word].load(Ordering::Relaxed);
    let kind = match load(1) >> KIND_SHIFT {
        0 => SpanKind::Batch,
        1 => SpanKind::Sample,
        2 => SpanKind::Encode,
        _ => return None,
    };
    let time = Duration::from_nanos(load(1) & ((1 << KIND_SHIFT) - 1));
    Some(Span { kind, start: load(0), time, task: load(2), detail: load(3) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Span {
        let kind = [SpanKind::Batch, SpanKind::Sample, SpanKind::Encode][number as usize % 3];
        Span { kind, start: number, time: Duration::from_nanos(number), task: number / 3, detail: number }
    }

    #[test]
    fn a_reader_gets_each_span_once_unless_it_was_overwritten() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let (mut pushed, mut next) = (0, 0);
        for more in [0, 5, KEPT - 5, 10, 3 * KEPT, 1] {
            for number in pushed..pushed + more {
                push(&words, numbered(number));
            }
            pushed += more;
            let (spans, end) = read(&words, next);
            assert_eq!(end, pushed);
            // The oldest span of a full ring might be being overwritten.
            let first = next.max((pushed + 1).saturating_sub(KEPT)).min(pushed);
            assert_eq!(spans, (first..pushed).map(numbered).collect::<Vec<_>>());
            next = end;
        }
    }
}
