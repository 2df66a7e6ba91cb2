//! The iterator over the batches of an epoch.

use std::{error::Error as StdError, sync::Arc};

use burn_core::{
    data::{
        dataloader::{DataLoaderIterator, Progress},
        dataset::DatasetError,
    },
    tensor::Device,
};
use loader_core::{Iter, collate::Batch};

use crate::Error;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
/// Makes burn's batch of the loader's.
pub(crate) type Convert<B, O> = dyn Fn(B, &Device) -> Result<O, BoxError> + Send + Sync;

/// The batches of an epoch, for burn.
pub(crate) struct Epoch<B, O> {
    /// `None` if there are no items, or the epoch could not be started.
    batches: Option<Iter<B>>,
    /// Why the epoch could not be started.
    failed: Option<DatasetError>,
    convert: Arc<Convert<B, O>>,
    device: Device,
    /// Number of batches in the epoch, if it is known.
    expected: Option<usize>,
    progress: Progress,
    /// Number of batches and errors that were returned.
    returned: usize,
}

impl<B: Batch, O> Epoch<B, O> {
    /// Returns the batches of `started`, or its error as the only item. `expected` is the number of batches,
    /// if it is known, and `items` the number of items.
    pub(crate) fn new(
        started: Result<Option<Iter<B>>, DatasetError>,
        convert: Arc<Convert<B, O>>,
        device: Device,
        expected: Option<usize>,
        items: usize,
    ) -> Self {
        let (batches, failed) = match started {
            Ok(batches) => (batches, None),
            Err(error) => (None, Some(error)),
        };
        let progress = Progress::new(0, items, Some("items".to_owned()));
        Self { batches, failed, convert, device, expected, progress, returned: 0 }
    }

    /// Counts the batch that was returned last.
    fn count(&mut self, samples: usize, is_exact: bool) {
        self.returned += 1;
        let Progress { items_processed, items_total, .. } = &mut self.progress;
        *items_processed += samples;
        if is_exact && self.expected == Some(self.returned) {
            // Also if the epoch has fewer samples than the dataset, because of `drop_last` or bad samples.
            *items_processed = *items_total;
        } else if *items_processed > *items_total || self.expected.is_none() {
            // Burn takes the epoch for completed when both are equal.
            *items_total = *items_processed + 1;
        }
    }
}

impl<B: Batch, O> Iterator for Epoch<B, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let batches = self.batches.as_mut()?;
        let batch = batches.next()?;
        let info = batches.last_batch();
        let (samples, is_exact) = info.map_or((0, false), |info| (info.samples, info.shard.is_none()));
        self.count(samples, is_exact);
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        let converted = (self.convert)(batch, &self.device);
        Some(converted.map_err(|error| DatasetError::new(Error::Convert(error))))
    }
}

impl<B: Batch, O> DataLoaderIterator<O> for Epoch<B, O> {
    fn progress(&self) -> Progress {
        self.progress.clone()
    }
}
