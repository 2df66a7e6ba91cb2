//! Streams that are part of another stream, each with a context of its own.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::anyhow;

use super::{EndsShard, IterableDataset, Shard, SnapshotDataset, SnapshotIterator, generator::Generator};
use crate::data::context::SampleContext;

/// Returns the error of a nested stream that could not be opened. It ends the shard, as if the shard itself
/// could not be opened.
///
/// Alternative considered: treat the error like that of any item, and continue with the other streams.
/// Rejected because opening the stream may succeed later, in a resumed run or in the worker that replaces a
/// dead one. The items after it would then have different positions, and samples would be repeated or
/// missing.
fn not_opened(error: anyhow::Error) -> anyhow::Error {
    error.context("opening a stream that is part of the dataset").context(EndsShard)
}

/// Returns the samples of `shard` of `dataset`. The shard is opened when its first sample is needed, because
/// an open stream may hold files open. If opening fails, the only item is an error with the context
/// [`EndsShard`].
pub(super) fn open_later<D: IterableDataset>(
    dataset: &D,
    shard: Shard,
    mut cx: SampleContext,
) -> Generator<'_, anyhow::Result<D::Sample>> {
    Generator::new(move |giver| async move {
        match dataset.iter(shard, &mut cx) {
            Ok(items) => {
                for item in items {
                    giver.give(item).await;
                }
            }
            Err(error) => giver.give(Err(not_opened(error))).await,
        }
    })
}

/// The samples of one shard of a dataset with snapshots. Like [`open_later`], it opens the shard when the
/// first sample is needed.
pub(super) struct Nested<'a, S, P> {
    // A `RefCell`, because `snapshot` takes `&self` but must advance the generator.
    answers: RefCell<Generator<'a, Answer<S, P>>>,
    wants_snapshot: Arc<AtomicBool>,
    is_open: bool,
}

enum Answer<S, P> {
    Opened,
    NotOpened(anyhow::Error),
    Item(anyhow::Result<S>),
    Snapshot(anyhow::Result<P>),
}

impl<'a, S: Send + 'static, P: Send> Nested<'a, S, P> {
    /// Creates the stream of the samples of `shard` after `snapshot`.
    pub(super) fn new<D: SnapshotDataset<Sample = S, Snapshot = P>>(
        dataset: &'a D,
        shard: Shard,
        mut cx: SampleContext,
        snapshot: Option<P>,
    ) -> Self
    where
        P: 'a,
    {
        let wants_snapshot = Arc::new(AtomicBool::new(false));
        let wants = Arc::clone(&wants_snapshot);
        let answers = Generator::new(move |giver| async move {
            let mut items = match dataset.iter_from(shard, &mut cx, snapshot) {
                Ok(items) => items,
                Err(error) => return giver.give(Answer::NotOpened(error)).await,
            };
            giver.give(Answer::Opened).await;
            loop {
                // Relaxed: the block runs on the thread that set the flag.
                if wants.swap(false, Ordering::Relaxed) {
                    giver.give(Answer::Snapshot(items.snapshot())).await;
                    continue;
                }
                let Some(item) = items.next() else { return };
                giver.give(Answer::Item(item)).await;
            }
        });
        Self { answers: RefCell::new(answers), wants_snapshot, is_open: false }
    }

    /// Opens the shard now instead of at its first sample.
    ///
    /// # Errors
    /// Returns the error of the dataset.
    pub(super) fn open(&mut self) -> anyhow::Result<()> {
        self.is_open = true;
        match self.answers.get_mut().next() {
            Some(Answer::NotOpened(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl<S: Send + 'static, P: Send> Iterator for Nested<'_, S, P> {
    type Item = anyhow::Result<S>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.is_open
            && let Err(error) = self.open()
        {
            return Some(Err(not_opened(error)));
        }
        match self.answers.get_mut().next()? {
            Answer::Item(item) => Some(item),
            _ => None,
        }
    }
}

impl<S: Send + 'static, P: Send> SnapshotIterator for Nested<'_, S, P> {
    type Snapshot = P;

    fn snapshot(&self) -> anyhow::Result<P> {
        // Relaxed: the block runs on this thread.
        self.wants_snapshot.store(true, Ordering::Relaxed);
        match self.answers.borrow_mut().next() {
            Some(Answer::Snapshot(snapshot)) => snapshot,
            _ => Err(anyhow!("the stream has ended")),
        }
    }
}

impl<S, P> fmt::Debug for Nested<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nested").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}
