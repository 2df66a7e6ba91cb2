//! The positions of a process in the shards that it reads.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::bail;
use loader_ipc::{
    frame::{AfterFailure, StreamPosition},
    profile::BatchTimer,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::open_shard::{Given, Items, OpenShard};
use crate::data::{
    context::{SampleContext, Shard},
    dataset::out_of_place::OutOfPlace,
};

/// A position in a shard, at which it can be opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardPosition {
    /// The position.
    pub position: StreamPosition,
    /// The last snapshot up to this position.
    pub snapshot: Option<Snapshot>,
    /// True if the shard has no more items.
    pub ended: bool,
}

/// A snapshot that the iterator of a shard wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The position in the shard when it was written.
    pub position: StreamPosition,
    /// The encoded snapshot. States share it.
    pub bytes: Arc<[u8]>,
}

impl ShardPosition {
    /// Returns the position of the snapshot; the beginning of the shard if there is none.
    pub(crate) fn start(&self) -> StreamPosition {
        self.snapshot.as_ref().map_or_else(StreamPosition::default, |snapshot| snapshot.position)
    }
}

/// An item, and the snapshot after it if one was written.
type ItemWithSnapshot<S> = (anyhow::Result<S>, Option<Vec<u8>>);

/// The cursors of the shards from which this process has read, by number of the shard.
pub(crate) struct Cursors<S>(BTreeMap<usize, Cursor<S>>);

/// A shard from which this process reads, and its position there.
pub(super) struct Cursor<S> {
    /// `None` once the shard has ended.
    items: Option<Items<S>>,
    /// Set to ask for a snapshot with the next item.
    wants_snapshot: Arc<AtomicBool>,
    is_open: bool,
    /// The position after the last item that was taken.
    position: StreamPosition,
    /// Number of items still to skip before the first batch.
    skip: u64,
    /// The position before the first batch, according to the process that has read the shard before.
    target: StreamPosition,
    /// What the last failure means for the shard.
    after_failure: AfterFailure,
    /// Number of batches since the last snapshot.
    batches: u64,
}

impl<S> Cursor<S> {
    /// Opens a shard at a position.
    pub(super) fn new<O>(dataset: &Arc<O>, shard: Shard, cx: SampleContext, open_at: &ShardPosition) -> Self
    where
        O: OpenShard<Sample = S>,
    {
        // The state may come from a loader with snapshots while this one has none.
        let snapshot = open_at.snapshot.as_ref().filter(|_| O::SNAPSHOTS);
        let position = snapshot.map_or_else(StreamPosition::default, |snapshot| snapshot.position);
        // Saturating: a faulty worker may have sent a snapshot that lies after the position.
        let skip = open_at.position.items.saturating_sub(position.items);
        let wants_snapshot = Arc::new(AtomicBool::new(false));
        let snapshot = snapshot.map(|snapshot| snapshot.bytes.to_vec());
        let items = Arc::clone(dataset).open(shard, cx, snapshot, skip, Arc::clone(&wants_snapshot));
        Self {
            items: Some(items),
            wants_snapshot,
            is_open: false,
            position,
            skip,
            target: open_at.position,
            after_failure: AfterFailure::Continues,
            batches: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Waits until the dataset has opened the shard. Does nothing if a previous attempt failed.
    ///
    /// # Errors
    /// The dataset's error. The shard then has no more items.
    pub(super) fn wait_until_open(&mut self, shard: usize) -> anyhow::Result<()> {
        let Some(items) = &mut self.items else { return Ok(()) };
        match items.0.next() {
            Some(Given::NotOpen(error)) => {
                (self.items, self.after_failure) = (None, AfterFailure::EndsForEpoch);
                return Err(error.context(format!("opening shard {shard}")));
            }
            Some(Given::Opened { skipped }) if skipped > 0 => {
                // No error of such a dataset changes which items follow, and the dataset has skipped all of them.
                (self.position, self.skip) = (self.target, 0);
            }
            _ => {}
        }
        self.is_open = true;
        Ok(())
    }

    /// Asks for a snapshot with the next item if the item ends a batch and the snapshot is due.
    pub(super) fn ask_for_snapshot(&self, ends_batch: bool, every: u64) {
        let is_due = ends_batch && self.skip == 0 && self.batches + 1 >= every;
        // Relaxed: the same thread reads the flag.
        self.wants_snapshot.store(is_due, Ordering::Relaxed);
    }

    /// Counts a batch.
    pub(super) fn end_batch(&mut self, has_snapshot: bool) {
        self.batches = if has_snapshot { 0 } else { self.batches + 1 };
    }

    /// Ends the shard because it cannot be read further. Its position stays at `start`, the beginning of this
    /// batch, so that a resumed run reads the rest.
    pub(super) fn end_at(&mut self, start: StreamPosition) {
        (self.items, self.position, self.skip) = (None, start, 0);
        self.after_failure = AfterFailure::EndsForEpoch;
    }

    /// Number of items that were taken.
    pub(super) fn items(&self) -> u64 {
        self.position.items
    }

    /// Number of items that were taken, for the control page.
    pub(super) fn items_taken(&self) -> usize {
        usize::try_from(self.position.items).unwrap_or(usize::MAX)
    }

    /// Returns the position, including items still to skip.
    pub(super) fn reached(&self) -> StreamPosition {
        if self.skip > 0 { self.target } else { self.position }
    }

    /// Notes that `item` was taken. Returns true if it was to be skipped.
    ///
    /// # Errors
    /// Returns the error of [`check_errors`](Self::check_errors) after the last item that was to be skipped.
    pub(super) fn took(&mut self, item: &anyhow::Result<S>, shard: usize) -> anyhow::Result<bool> {
        let StreamPosition { items, errors } = &mut self.position;
        if let Err(error) = item
            && let Some(OutOfPlace(inner)) = error.downcast_ref()
        {
            let bytes = [items.to_le_bytes(), inner.to_le_bytes()].concat();
            // Every format in which a state may be written can hold 53 bits.
            *errors = xxh3_64_with_seed(&bytes, *errors) >> 11;
        }
        *items = items.saturating_add(1);
        // If a skipped item is an error, the loader has reported it when it read the item for the first time.
        let is_skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        if is_skipped && self.skip == 0 {
            self.check_errors(shard)?;
        }
        Ok(is_skipped)
    }

    /// Checks that the same items were errors as when they were read for the first time. Otherwise the items that
    /// follow are not the remaining ones: a shuffle buffer, for example, has other samples.
    ///
    /// # Errors
    /// Returns an error if others were. The shard then has no more items, and keeps its position.
    fn check_errors(&mut self, shard: usize) -> anyhow::Result<()> {
        let StreamPosition { items, errors } = self.target;
        if errors == self.position.errors {
            return Ok(());
        }
        self.end_at(self.target);
        bail!(
            "shard {shard} cannot continue at item {items}: the errors before this item are not the same as when the shard \
             was first read, so other samples would follow; resume from the state again if a sample cannot be read for now, or \
             begin the epoch again"
        );
    }

    /// Reads the next item, with its snapshot if it has one. `None` at the end of the shard.
    ///
    /// # Errors
    /// Returns an error if the shard ends before all items were skipped: its data has changed since the state was
    /// saved. Returns the error of [`check_errors`](Self::check_errors) after the last item that was to be skipped.
    pub(super) fn next_item(
        &mut self,
        shard: usize,
        timer: Option<&BatchTimer<'_>>,
    ) -> anyhow::Result<Option<ItemWithSnapshot<S>>> {
        if let Some(timer) = timer {
            timer.start_sample();
        }
        let Some(items) = &mut self.items else { return Ok(None) };
        if let Some(Given::Item(item, snapshot)) = items.0.next() {
            return Ok(Some((item, snapshot)));
        }
        self.items = None;
        if self.skip > 0 {
            self.check_errors(shard)?;
            let (found, StreamPosition { items, .. }) = (self.position.items, self.target);
            self.end_at(self.target);
            bail!(
                "shard {shard} cannot continue at item {items}: it has only {found} items now, so its data is not that of the \
                 run before; restore the data and resume from the state again, or begin the epoch again"
            );
        }
        Ok(None)
    }
}

impl<S> Default for Cursors<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S> Cursors<S> {
    /// Returns the position in a shard, including items still to skip; the beginning if no batch of it was asked
    /// for.
    pub(crate) fn position(&self, shard: usize) -> StreamPosition {
        self.0.get(&shard).map_or_else(StreamPosition::default, Cursor::reached)
    }

    /// Returns the cursor of a shard; `open` makes it if this process has none that is at `open_at`, because it has not
    /// read the shard, or because another worker has read the shard since. A task that continues the shard has the
    /// start as `open_at`.
    pub(super) fn at(
        &mut self,
        shard: usize,
        open_at: &ShardPosition,
        open: impl FnOnce() -> Cursor<S>,
    ) -> &mut Cursor<S> {
        if open_at.position.items > 0 && self.position(shard) != open_at.position {
            let stale = self.0.remove(&shard);
            // A panic of the iterator's destructor must not fail the task, which is to open the shard.
            drop(catch_unwind(AssertUnwindSafe(|| drop(stale))));
        }
        self.0.entry(shard).or_insert_with(open)
    }

    /// Ends a shard in which the user's code has panicked.
    pub(super) fn end_after_panic(&mut self, shard: usize) {
        let Some(cursor) = self.0.get_mut(&shard) else { return };
        // Until the cursor has skipped to its position, a loader that resumes may try again.
        let is_at_position = cursor.is_open && cursor.skip == 0;
        cursor.after_failure = if is_at_position { AfterFailure::Ends } else { AfterFailure::EndsForEpoch };
        let items = cursor.items.take();
        // The iterator's destructor is user code too. A second panic must not unwind from here.
        drop(catch_unwind(AssertUnwindSafe(|| drop(items))));
    }

    /// Returns what the last failure of a shard means for it.
    pub(crate) fn after_failure(&self, shard: usize) -> AfterFailure {
        self.0.get(&shard).map_or(AfterFailure::Continues, |cursor| cursor.after_failure)
    }
}
