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
/// Converts a batch of the loader to the batch that burn gets.
pub(crate) type Convert<B, O> = dyn Fn(B, &Device) -> Result<O, BoxError> + Send + Sync;

/// The batches of an epoch, for burn.
pub(crate) struct Epoch<B, O> {
    /// `None` if there are no items, or the epoch could not be started.
    batches: Option<Iter<B>>,
    /// Why the epoch could not be started.
    failed: Option<DatasetError>,
    convert: Arc<Convert<B, O>>,
    device: Device,
    progress: Progress,
}

impl<B: Batch, O> Epoch<B, O> {
    /// Returns the batches of `started`, or its error as the only item. `items` is the number of items, 0 if it is
    /// not known.
    pub(crate) fn new(
        started: Result<Option<Iter<B>>, DatasetError>,
        convert: Arc<Convert<B, O>>,
        device: Device,
        items: usize,
    ) -> Self {
        let (batches, failed) = match started {
            Ok(batches) => (batches, None),
            Err(error) => (None, Some(error)),
        };
        // Burn takes the epoch for completed when both numbers are equal.
        let progress = Progress::new(0, items.max(1), Some("items".to_owned()));
        Self { batches, failed, convert, device, progress }
    }

    /// Counts a batch. `is_last` says that no other follows.
    fn count(&mut self, samples: usize, is_last: bool) {
        let Progress { items_processed, items_total, .. } = &mut self.progress;
        *items_processed += samples;
        if is_last {
            // Also if the epoch has fewer samples than the dataset, because of `drop_last` or bad samples.
            *items_total = (*items_total).max(*items_processed);
            *items_processed = *items_total;
        } else if *items_processed >= *items_total {
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
        // An error without a batch, such as that of a timeout, counts for nothing: the batch follows.
        let info = batches.last_batch().map(|info| (info.number, info.samples));
        let is_last = batches.size_hint().1 == Some(0);
        let (number, samples) = info.unwrap_or_default();
        if info.is_some() {
            self.count(samples, is_last);
        }
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        let converted = (self.convert)(batch, &self.device);
        Some(converted.map_err(|source| DatasetError::new(Error::Convert { number, source })))
    }
}

impl<B: Batch, O> DataLoaderIterator<O> for Epoch<B, O> {
    fn progress(&self) -> Progress {
        self.progress.clone()
    }
}
