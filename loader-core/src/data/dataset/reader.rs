//! Reads a stream with marks, from which a resumed stream reads a part of it again.
//!
//! An item may be an error when it is read for the first time and a sample when it is read again, or the other
//! way round: a server did not answer once. The reader therefore keeps which items were errors. The user has
//! received these errors, so a resumed stream leaves the samples in their places out.

use std::collections::VecDeque;

use anyhow::{Context, anyhow};
use loader_ipc::codec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{EndsShard, SnapshotIterator, out_of_place::OutOfPlace};

/// Reads a stream, and sets marks from which the stream can be read again.
pub(super) struct Reader<I> {
    items: I,
    has_ended: bool,
    /// Number of items read.
    read: u64,
    /// The marks, oldest first. There is at least one.
    marks: VecDeque<Mark>,
    /// The items since the first mark that were errors when they were first read, in their order.
    errors: VecDeque<ErrorItem>,
    /// Number of items between two marks.
    interval: u64,
    /// The next mark is set when this number of items has been read.
    next_mark: u64,
}

/// A position from which the stream can be read again.
struct Mark {
    /// Number of items read before the mark.
    read: u64,
    /// Snapshot of the stream, encoded; `None` stands for its beginning.
    inner: Option<Vec<u8>>,
}

/// An item that was an error.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ErrorItem {
    position: u64,
    /// The position in the context [`OutOfPlace`] of the error, if it had one.
    out_of_place: Option<u64>,
}

/// What a resumed stream needs to read a part of the stream again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReaderSnapshot {
    /// Number of items read from the stream.
    pub(super) read: u64,
    /// Number of items that had been read when the inner snapshot was taken.
    pub(super) start: u64,
    /// The inner snapshot, encoded; `None` stands for the beginning of the shard.
    inner: Option<Vec<u8>>,
    /// The items from `start` on that were errors.
    errors: Vec<ErrorItem>,
}

impl ReaderSnapshot {
    /// Returns the snapshot of the inner stream.
    pub(super) fn inner<P: DeserializeOwned>(&self) -> anyhow::Result<Option<P>> {
        let decode =
            |bytes: &Vec<u8>| codec::decode(bytes).context("reading the snapshot of the inner stream");
        self.inner.as_ref().map(decode).transpose()
    }
}

impl<S, I> Reader<I>
where
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    /// Creates a reader of a stream from its beginning. It sets a mark every `interval` items.
    pub(super) fn new(items: I, interval: u64) -> Self {
        Self::resume(items, interval, ReaderSnapshot { read: 0, start: 0, inner: None, errors: Vec::new() })
    }

    /// Creates a reader of `items`, which was opened at the inner snapshot of `snapshot`.
    pub(super) fn resume(items: I, interval: u64, snapshot: ReaderSnapshot) -> Self {
        let ReaderSnapshot { start, inner, errors, .. } = snapshot;
        Self {
            items,
            has_ended: false,
            read: start,
            marks: VecDeque::from([Mark { read: start, inner }]),
            errors: errors.into(),
            interval,
            next_mark: start.saturating_add(interval),
        }
    }

    /// Returns the next item: a sample with its position. `oldest` returns the position of the oldest sample
    /// that is still needed.
    pub(super) fn next(&mut self, oldest: impl FnOnce() -> Option<u64>) -> Option<anyhow::Result<(u64, S)>> {
        let position = self.read;
        let item = match self.take(oldest) {
            Ok(item) => item?,
            Err(error) => return Some(Err(OutOfPlace::mark(error, position))),
        };
        if let Err(error) = &item {
            self.errors.push_back(ErrorItem { position, out_of_place: OutOfPlace::position(error) });
        }
        Some(item.map(|sample| (position, sample)).map_err(|error| OutOfPlace::mark(error, position)))
    }

    /// Reads the next item, and sets a mark before it if one is due.
    ///
    /// # Errors
    /// Returns an error if the mark cannot be set. No item is then read.
    fn take(&mut self, oldest: impl FnOnce() -> Option<u64>) -> anyhow::Result<Option<anyhow::Result<S>>> {
        if self.has_ended {
            return Ok(None);
        }
        if self.read >= self.next_mark {
            self.mark(oldest())?;
        }
        let item = self.items.next();
        match item {
            Some(_) => self.read += 1,
            None => self.has_ended = true,
        }
        Ok(item)
    }

    /// Sets a mark at the current position. Drops what is not needed to read item `oldest` again.
    fn mark(&mut self, oldest: Option<u64>) -> anyhow::Result<()> {
        self.next_mark = self.read.saturating_add(self.interval);
        let inner = self.items.snapshot().context("writing a snapshot of the inner stream")?;
        let inner = codec::encode(&inner).context("encoding a snapshot of the inner stream")?;
        self.marks.push_back(Mark { read: self.read, inner: Some(inner) });
        self.marks.drain(..self.start_for(oldest));
        self.errors.drain(..self.errors_before(self.marks[0].read));
        Ok(())
    }

    /// Returns the index of the last mark from which the item `oldest` can be read.
    fn start_for(&self, oldest: Option<u64>) -> usize {
        let oldest = oldest.unwrap_or(self.read);
        self.marks.partition_point(|mark| mark.read <= oldest).saturating_sub(1)
    }

    /// Returns the number of `errors` before `position`.
    fn errors_before(&self, position: u64) -> usize {
        self.errors.partition_point(|error| error.position < position)
    }

    /// Returns the number of items read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Reads the items from the first mark to position `end` again, after a resume. Passes those to `visit` that
    /// were samples when they were first read, each with its position. Such an item may now be an error.
    ///
    /// # Errors
    /// Returns an error if the samples after an item are others than when they were first read.
    pub(super) fn repeat(
        &mut self,
        end: u64,
        oldest: Option<u64>,
        mut visit: impl FnMut(u64, anyhow::Result<S>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        while self.read < end {
            let position = self.read;
            // The marks before stay valid, and the next mark is set later.
            let Ok(item) = self.take(|| oldest) else { continue };
            let item = item.with_context(|| {
                format!(
                    "the stream ended after {position} items, but had {end} or more when the snapshot was taken; the \
                     data must not change between two runs"
                )
            })?;
            let known =
                self.errors.get(self.errors_before(position)).filter(|error| error.position == position);
            let out_of_place_before = known.and_then(|error| error.out_of_place);
            let out_of_place_now = item.as_ref().err().and_then(OutOfPlace::position);
            match item.with_context(|| format!("reading item {position} of the stream again")) {
                Err(error) if error.is::<EndsShard>() => return Err(error),
                item if out_of_place_now != out_of_place_before => return Err(changed(position, item.err())),
                item if known.is_none() => visit(position, item)?,
                // The user has received the error.
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns a snapshot from which the items from `oldest` on can be read again.
    pub(super) fn snapshot(&self, oldest: Option<u64>) -> ReaderSnapshot {
        let Mark { read: start, ref inner } = self.marks[self.start_for(oldest)];
        let errors = self.errors.range(self.errors_before(start)..).copied().collect();
        ReaderSnapshot { read: self.read, start, inner: inner.clone(), errors }
    }
}

/// Returns the error of an item that changes which samples come after it, because it was a sample when it was
/// first read and is `error` now; or because it was an error and is none now, if `error` is `None`.
fn changed(position: u64, error: Option<anyhow::Error>) -> anyhow::Error {
    let (before, now) = if error.is_some() { ("a sample", "an error") } else { ("an error", "a sample") };
    let message = format!(
        "item {position} of the stream was {before} when it was first read and is {now} now, so the samples after it \
         are others; resume from the state again, or begin the epoch again"
    );
    match error {
        Some(error) => error.context(message),
        None => anyhow!(message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    };

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::data::{
        context::SampleContext,
        dataset::{IterableDataset, LengthBatch, Shard, SnapshotDataset},
        pack::{PackMethod, PackedWindow, Packing},
    };

    /// The tests share `READING`.
    static ALONE: Mutex<()> = Mutex::new(());
    /// Which reading of the stream this is.
    static READING: AtomicU64 = AtomicU64::new(0);

    /// The numbers below `count`. The number `bad` is an error in the reading `bad_in`.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Flaky {
        count: u64,
        bad: u64,
        bad_in: u64,
    }

    struct FlakyIter {
        next: u64,
        stream: Flaky,
    }

    impl Iterator for FlakyIter {
        type Item = anyhow::Result<u64>;

        fn next(&mut self) -> Option<Self::Item> {
            let number = self.next;
            self.next += 1;
            // Relaxed: the same thread writes it.
            let is_bad = number == self.stream.bad && READING.load(Ordering::Relaxed) == self.stream.bad_in;
            let item = if is_bad { Err(anyhow!("no answer for {number}")) } else { Ok(number) };
            (number < self.stream.count).then_some(item)
        }
    }

    impl SnapshotIterator for FlakyIter {
        type Snapshot = u64;

        fn snapshot(&self) -> anyhow::Result<u64> {
            Ok(self.next)
        }
    }

    impl IterableDataset for Flaky {
        type Sample = u64;

        fn iter(
            &self,
            shard: Shard,
            cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
            self.iter_from(shard, cx, None)
        }
    }

    impl SnapshotDataset for Flaky {
        type Snapshot = u64;

        fn iter_from(
            &self,
            _shard: Shard,
            _cx: &mut SampleContext,
            snapshot: Option<u64>,
        ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send>
        {
            Ok(FlakyIter { next: snapshot.unwrap_or(0), stream: self.clone() })
        }
    }

    /// What the resumes of a stream in the reading 1 led to.
    #[derive(Debug, Default, PartialEq)]
    struct Resumed {
        /// Number of resumes that gave the remaining samples.
        same: usize,
        /// Number of resumes that failed.
        refused: usize,
    }

    /// Reads `dataset` in the reading 0. Resumes it after each item in the reading 1, and again in the reading 2
    /// from a snapshot that the resumed stream writes at once.
    fn resume<D: SnapshotDataset>(dataset: &D, text: impl Fn(D::Sample) -> String) -> Resumed {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = Shard::new(0, 1);
        let begin = |reading, snapshot: Option<&[u8]>| {
            // Relaxed: the same thread reads it.
            READING.store(reading, Ordering::Relaxed);
            let snapshot = snapshot.map(|bytes| codec::decode(bytes).unwrap());
            (SampleContext::for_shard(None, 7, 0, shard), snapshot)
        };
        let saved =
            |items: &dyn Fn() -> anyhow::Result<D::Snapshot>| codec::encode(&items().unwrap()).unwrap();
        let (mut cx, start) = begin(0, None);
        let mut items = dataset.iter_from(shard, &mut cx, start).unwrap();
        let (mut whole, mut snapshots) = (Vec::new(), Vec::new());
        while let Some(item) = items.next() {
            whole.push(item.map_or_else(|_| "bad".to_owned(), &text));
            snapshots.push(saved(&|| items.snapshot()));
        }
        let mut resumed = Resumed::default();
        for (taken, snapshot) in (1..).zip(&snapshots) {
            let (mut cx, from) = begin(1, Some(snapshot));
            let snapshot = match dataset.iter_from(shard, &mut cx, from) {
                Ok(items) => saved(&|| items.snapshot()),
                Err(error) => {
                    let error = format!("{error:#}");
                    assert!(error.contains("item 5 of the stream"), "{error}");
                    resumed.refused += 1;
                    continue;
                }
            };
            let (mut cx, from) = begin(2, Some(&snapshot));
            let items = dataset.iter_from(shard, &mut cx, from).unwrap();
            let rest: Vec<String> = items.map(|item| item.map_or_else(|_| "bad".to_owned(), &text)).collect();
            assert_eq!(rest, whole[taken..], "after {taken} items");
            resumed.same += 1;
        }
        resumed
    }

    fn flaky(bad_in: u64) -> Flaky {
        Flaky { count: 8, bad: 5, bad_in }
    }

    fn batch(batch: LengthBatch<u64>) -> String {
        format!("{:?}", batch.samples)
    }

    #[test]
    fn the_sample_in_the_place_of_an_error_is_left_out_when_it_is_read_again() {
        let number = |number: u64| number.to_string();
        // One error and seven samples. The error is the first item, because the buffer is larger than the stream.
        assert_eq!(resume(&flaky(0).shuffle_buffer(20), number), Resumed { same: 8, refused: 0 });
        // One error, and batches of three, three and one sample.
        let batches = flaky(0).length_batches(24, 1000, |_| 8).unwrap();
        assert_eq!(resume(&batches, batch), Resumed { same: 4, refused: 0 });
        let packed = IterableDataset::map(flaky(0), |number, _cx| Ok(vec![number as i64 + 1; 8]));
        let packed = packed.pack(Packing::new(24).method(PackMethod::FirstFit)).unwrap();
        let tokens = |window: PackedWindow<i64>| format!("{:?}", window.tokens.as_slice());
        assert_eq!(resume(&packed, tokens), Resumed { same: 4, refused: 0 });
    }

    #[test]
    fn a_needed_sample_that_is_an_error_when_it_is_read_again_is_not_lost() {
        // Batches of three, three and two samples. All samples are needed until the last batch is given.
        let batches = flaky(1).length_batches(24, 1000, |_| 8).unwrap();
        assert_eq!(resume(&batches, batch), Resumed { same: 1, refused: 2 });
        let shuffled = resume(&flaky(1).shuffle_buffer(20), |number| number.to_string());
        assert!(shuffled.refused > 0 && shuffled.same > 0 && shuffled.same + shuffled.refused == 8);
    }

    #[test]
    fn an_error_that_changes_later_samples_must_be_an_error_again() {
        let number = |number: u64| number.to_string();
        for bad_in in [0, 1] {
            // The filter moves all samples after the number 5, which it leaves out.
            let filtered = flaky(bad_in).filter(|&number, _cx| Ok(number != 5)).shuffle_buffer(20);
            let Resumed { same, refused } = resume(&filtered, number);
            assert_eq!((same, refused), (0, 7 + usize::from(bad_in == 0)), "bad in the reading {bad_in}");
        }
    }
}
