//! The iterator over the batches of an epoch.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex, PoisonError},
};

use burn_core::{
    data::{
        dataloader::{DataLoaderIterator, Progress},
        dataset::DatasetError,
    },
    tensor::Device,
};
use loader_core::{BatchInfo, ConvertAhead, EpochReport, Error as LoaderError, Iter, collate::Batch};

use crate::Error;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
/// Converts a batch of the loader to the batch that burn gets.
pub(crate) type Convert<B, O> = dyn Fn(B, &Device) -> Result<O, BoxError> + Send + Sync;
/// Where an epoch that is over leaves its report.
pub(crate) type LastReport = Mutex<Option<EpochReport>>;

/// The batches of an epoch, for burn.
pub(crate) struct Epoch<B, O> {
    /// `None` if there are no items, or the epoch could not be started.
    batches: Option<Batches<B, O>>,
    /// Why the epoch could not be started.
    failed: Option<DatasetError>,
    progress: Progress,
    last_report: Arc<LastReport>,
    /// True if the report was stored.
    is_over: bool,
}

/// Where batches are converted.
pub(crate) enum Batches<B, O> {
    /// On the thread that asks for them.
    Here { iter: Iter<B>, convert: Arc<Convert<B, O>>, device: Device },
    /// On a thread of their own.
    Ahead(ConvertAhead<Result<O, BoxError>>),
}

impl<B: Batch, O: Send + 'static> Epoch<B, O> {
    /// Returns the batches of `started`, or its error as the only item. `items` is the number of items, 0 if it is
    /// not known.
    pub(crate) fn new(
        started: Result<Option<Batches<B, O>>, DatasetError>,
        items: usize,
        last_report: Arc<LastReport>,
    ) -> Self {
        let (batches, failed) = match started {
            Ok(batches) => (batches, None),
            Err(error) => (None, Some(error)),
        };
        // Burn takes the epoch for completed when both numbers are equal.
        let progress = Progress::new(0, items.max(1), Some("items".to_owned()));
        Self { batches, failed, progress, last_report, is_over: false }
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

impl<B: Batch, O: Send + 'static> Iterator for Epoch<B, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let batches = self.batches.as_mut()?;
        let Some(batch) = batches.next() else {
            // Burn may ask again after the end.
            if let Some(report) = batches.report().filter(|_| !std::mem::replace(&mut self.is_over, true)) {
                *self.last_report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
            }
            return None;
        };
        // An error without a batch, such as that of a timeout, counts for nothing: the batch follows.
        let info = batches.last_batch().map(|info| (info.number, info.samples));
        let is_last = batches.is_over();
        let (number, samples) = info.unwrap_or_default();
        if info.is_some() {
            self.count(samples, is_last);
        }
        let converted = match batch {
            Ok(converted) => converted,
            Err(error) => return Some(Err(DatasetError::new(error))),
        };
        Some(converted.map_err(|source| DatasetError::new(Error::Convert { number, source })))
    }
}

impl<B: Batch, O: Send + 'static> DataLoaderIterator<O> for Epoch<B, O> {
    fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl<B: Batch, O: Send + 'static> Batches<B, O> {
    /// Converts the batches of `iter`. A thread keeps `ahead` of them ready, unless that is 0.
    pub(crate) fn new(
        iter: Iter<B>,
        ahead: usize,
        convert: Arc<Convert<B, O>>,
        device: Device,
    ) -> Result<Self, LoaderError> {
        if ahead == 0 {
            return Ok(Self::Here { iter, convert, device });
        }
        // An error of the conversion is a result of the thread, so that it keeps its type.
        Ok(Self::Ahead(iter.convert_ahead(ahead, move |batch| Ok(convert(batch, &device)))?))
    }

    /// Returns the next batch, the error of its conversion, or the loader's error.
    fn next(&mut self) -> Option<Result<Result<O, BoxError>, LoaderError>> {
        match self {
            Self::Here { iter, convert, device } => Some(iter.next()?.map(|batch| convert(batch, device))),
            Self::Ahead(batches) => batches.next(),
        }
    }

    fn last_batch(&self) -> Option<&BatchInfo> {
        match self {
            Self::Here { iter, .. } => iter.last_batch(),
            Self::Ahead(batches) => batches.last_batch(),
        }
    }

    /// True if it is known that no batch follows the last one.
    fn is_over(&self) -> bool {
        let (_, most) = match self {
            Self::Here { iter, .. } => iter.size_hint(),
            Self::Ahead(batches) => batches.size_hint(),
        };
        most == Some(0)
    }

    /// Returns the report of the epoch, after `next` has returned `None`.
    fn report(&self) -> Option<EpochReport> {
        match self {
            Self::Here { iter, .. } => Some(iter.report()),
            Self::Ahead(batches) => batches.report().cloned(),
        }
    }
}
