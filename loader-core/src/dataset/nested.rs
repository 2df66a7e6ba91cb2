//! Streams inside another stream, each with a context of its own.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::anyhow;

use super::{IterableDataset, Shard, SnapshotDataset, SnapshotIterator, generator::Generator};
use crate::context::Context;

/// The part of an error that says that a nested stream could not be opened.
///
/// The loader then ends the shard, which keeps its place, as when the shard itself cannot be opened. Alternative
/// considered: the error is an item of the stream like any other, and the other streams go on. Rejected because
/// a later opening may succeed, in a resumed run or in the worker that replaces a dead one: the items behind it
/// would then have other positions, and samples would come twice or never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotOpened;

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("opening a stream that is part of the dataset")
    }
}

/// The samples of `shard` of `dataset`, which is opened when its first sample is needed, since an open stream
/// may hold files. If opening fails, an error with [`NotOpened`] is the stream's only item.
pub(super) fn open_later<D: IterableDataset>(
    dataset: &D,
    shard: Shard,
    mut cx: Context,
) -> Generator<'_, anyhow::Result<D::Sample>> {
    Generator::new(move |giver| async move {
        match dataset.iter(shard, &mut cx) {
            Ok(items) => {
                for item in items {
                    giver.give(item).await;
                }
            }
            Err(error) => giver.give(Err(error.context(NotOpened))).await,
        }
    })
}

/// The same stream with snapshots.
pub(super) struct Nested<'a, S, P> {
    // `snapshot` takes `&self`, but must advance the generator.
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
    /// The samples of `shard` behind `snapshot`.
    pub(super) fn new<D: SnapshotDataset<Sample = S, Snapshot = P>>(
        dataset: &'a D,
        shard: Shard,
        mut cx: Context,
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
                // Relaxed: the block runs on the thread that has set the flag.
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

    /// Opens the stream now instead of at its first sample.
    ///
    /// # Errors
    /// The dataset's own.
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
            return Some(Err(error.context(NotOpened)));
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
