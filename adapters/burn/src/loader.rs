//! [`BurnLoader`].

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use burn_core::{
    data::{
        dataloader::{DataLoader as BurnDataLoader, DataLoaderIterator, batcher::Batcher},
        dataset::DatasetError,
    },
    tensor::Device,
};
use loader_core::{DataLoader, EpochReport, collate::Batch};

use crate::{
    Error,
    epoch::{Batches, BoxError, Convert, Epoch, LastReport},
};

type Build<B> = dyn Fn(Range<usize>) -> Result<DataLoader<B>, BoxError> + Send + Sync;

/// A [`DataLoader`] as burn's [`DataLoader`](BurnDataLoader), for burn's learner and for training loops
/// written for burn. `B` is the batch of the loader, `O` the batch that burn gets.
///
/// Each call of `iter`, on this loader or on one that `to_device` has made of it, starts the next epoch; see
/// [`first_epoch`](Self::first_epoch). A function converts each `B` to an `O`, on the thread that asks for the
/// batch, or [ahead](Self::ahead) of it on another one. The device is burn's default until [`device`](Self::device) or
/// `to_device` sets it.
///
/// A program keeps a clone of the `Arc` that it gives to burn's learner, to ask for the [report](Self::last_report) of
/// the last epoch and for the [loader](Self::loader) with its statistics.
///
/// A batch that fails is a `DatasetError` with the loader's [`Error`](loader_core::Error) as its source. The
/// iterator continues after it as [`Iter`](loader_core::Iter) does. Burn's learner ends the training.
///
/// # Splitting among devices
/// Burn's strategies for several devices call `slice` to give each device a part of the items. A loader that
/// [`splittable`](Self::splittable) has made builds a loader for each part, with workers of its own. A loader
/// that [`new`](Self::new) has made cannot be split: the iterators of a part of it return
/// [`Error::NotSplittable`].
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use burn_core::{data::dataloader::DataLoader as _, tensor::{Device, Int, Tensor}};
/// use loader_burn::{BurnLoader, ToBurn};
/// use loader_core::{DataLoader, TensorDataset};
///
/// let numbers = TensorDataset::new(loader_core::Tensor::from_slice(&[1_i64, 2, 3], [3])?)?;
/// let loader = DataLoader::builder(numbers).batch_size(2).build()?;
/// let loader = BurnLoader::new(loader, |batch, device| batch.to_burn::<1>(device));
///
/// let mut batches = loader.iter();
/// let batch: Tensor<1, Int> = batches.next().unwrap()?;
/// assert_eq!(batch.dims(), [2]);
/// assert_eq!((batches.progress().items_processed, batches.progress().items_total), (2, 3));
/// # anyhow::Ok(())
/// ```
pub struct BurnLoader<B, O> {
    source: Source<B>,
    convert: Arc<Convert<B, O>>,
    device: Option<Device>,
    /// Number of batches that a thread keeps converted; 0 if there is no thread.
    ahead: usize,
    /// The epoch that `iter` starts next.
    epoch: Arc<Mutex<u64>>,
    last_report: Arc<LastReport>,
}

/// What a [`BurnLoader`] loads.
enum Source<B> {
    /// All that a loader loads.
    Whole(Arc<DataLoader<B>>),
    /// Some items of a dataset. Alternative considered: one loader for all devices, whose batches go to the devices
    /// in turn. Rejected because burn asks for ranges of items, not for turns, and because a slow device would hold
    /// back the batches of the others.
    Part(Part<B>),
    /// A part that could not be made.
    Failed(Arc<Error>),
}

struct Part<B> {
    items: Range<usize>,
    /// `None` if there are no items.
    loader: Option<Arc<DataLoader<B>>>,
    build: Arc<Build<B>>,
}

impl<B: Batch, O: Send + 'static> BurnLoader<B, O> {
    /// Adapts `loader`. `convert` turns each batch of the loader into the batch that burn gets, for example with
    /// [`to_burn`](crate::ToBurn::to_burn). It returns a `Result` with any error.
    ///
    /// The number of items for burn's progress is the share of the rank in [`DataLoader::samples`], rounded up, and 0
    /// if it is not known. The progress is completed by the last batch if the number of
    /// batches is known: for a map-style dataset, and with
    /// [`steps_per_epoch`](loader_core::Builder::steps_per_epoch). For other streams it is never completed, nor
    /// if all samples after the last batch are left out because they are bad. Burn's gradient accumulation then
    /// leaves out the last gradients if their number is less than that of a step.
    pub fn new<E: Into<BoxError>>(
        loader: DataLoader<B>,
        convert: impl Fn(B, &Device) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        Self::over(Source::Whole(Arc::new(loader)), convert)
    }

    /// Adapts a dataset of `len` items that burn may split among devices. `build` makes the loader of some of
    /// the items: a [`Subset`](loader_core::Subset) of the dataset, with the same options for any range. It
    /// is called with `0..len`, and with the items of each part.
    ///
    /// The parts are disjoint, and each of them is shuffled by itself. The order of a part depends on its
    /// range and the loader's seed only, so it is the same in each run. Each part has its own workers and its
    /// own copy of what the dataset shares with workers.
    ///
    /// # Errors
    /// - [`Error::Build`]: `build` failed for all items. If it fails for a part, the iterators of this part
    ///   return the error.
    /// - [`Error::WrongItems`]: the loader that `build` has returned has another number of samples.
    ///
    /// # Examples
    /// ```
    /// use burn_core::{data::dataloader::DataLoader as _, tensor::Device};
    /// use loader_burn::{BurnLoader, ToBurn};
    /// use loader_core::{DataLoader, Subset, TensorDataset};
    ///
    /// let numbers = TensorDataset::new(loader_core::Tensor::from_slice(&[1_i64, 2, 3, 4, 5], [5])?)?;
    /// let build = move |items| {
    ///     let part = Subset::new(numbers.clone(), items)?;
    ///     anyhow::Ok(DataLoader::builder(part).batch_size(2).build()?)
    /// };
    /// let loader = BurnLoader::splittable(5, build, |batch, device| batch.to_burn::<1>(device))?;
    ///
    /// let second = loader.slice(2, 5);
    /// let sums = second.iter().map(|batch| anyhow::Ok(batch?.sum().into_scalar::<i64>()));
    /// assert_eq!(sums.collect::<Result<Vec<_>, _>>()?, [3 + 4, 5]);
    /// # anyhow::Ok(())
    /// ```
    pub fn splittable<F: Into<BoxError>, E: Into<BoxError>>(
        len: usize,
        build: impl Fn(Range<usize>) -> Result<DataLoader<B>, F> + Send + Sync + 'static,
        convert: impl Fn(B, &Device) -> Result<O, E> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let build: Arc<Build<B>> = Arc::new(move |items| build(items).map_err(Into::into));
        Ok(Self::over(Source::Part(Part::new(0..len, build)?), convert))
    }

    fn over<E: Into<BoxError>>(
        source: Source<B>,
        convert: impl Fn(B, &Device) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        let convert = Arc::new(move |batch, device: &Device| convert(batch, device).map_err(Into::into));
        Self { source, convert, device: None, ahead: 0, epoch: Arc::default(), last_report: Arc::default() }
    }

    /// Sets the device of the batches.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Lets a thread convert the batches before burn asks for them, and keep at most `batches` of them ready,
    /// as [`Iter::convert_ahead`](loader_core::Iter::convert_ahead) does: copies to a device and the work of
    /// a `Batcher` then go on during the training step. 0, the default, starts no thread. Do not combine it
    /// with `pin_memory`: see the README, section *Page-locked memory in burn's source*.
    ///
    /// Batches, their order, errors and progress are the same, but a panic of the conversion is an error,
    /// [`ConversionFailed`](loader_core::Error::ConversionFailed). Converted batches that wait hold their slots. The
    /// report of the epoch counts the time of the conversion as time of the training step.
    #[must_use]
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = batches;
        self
    }

    /// Sets the number of the epoch, from 0, that the first call of `iter` starts; 0 by default. Burn counts
    /// from 1: with `checkpoint(n)`, its learner goes on after `n` epochs. `first_epoch(n)` then gives each
    /// epoch the order that it would have had if the training had never stopped.
    #[must_use]
    pub fn first_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Arc::new(Mutex::new(epoch));
        self
    }

    /// Returns the report of the epoch that was over last: its iterator, on this loader or on one that `to_device` has
    /// made of it, has returned `None`. It is `None` before that, and always if burn trains on several devices: burn
    /// then loads parts that `slice` has made, which have reports of their own.
    ///
    /// # Examples
    /// ```
    /// # use burn_core::data::dataloader::DataLoader as _;
    /// # use loader_burn::{BurnLoader, ToBurn};
    /// # use loader_core::{DataLoader, TensorDataset};
    /// # let numbers = TensorDataset::new(loader_core::Tensor::from_slice(&[1_i64, 2, 3], [3])?)?;
    /// # let loader = DataLoader::builder(numbers).batch_size(2).build()?;
    /// let loader = BurnLoader::new(loader, |batch, device| batch.to_burn::<1>(device));
    /// assert_eq!(loader.iter().count(), 2);
    /// let report = loader.last_report().expect("an epoch is over");
    /// assert_eq!((report.epoch, report.samples), (0, 3));
    /// # anyhow::Ok(())
    /// ```
    pub fn last_report(&self) -> Option<EpochReport> {
        self.last_report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the loader of the batches, for example for its [statistics](DataLoader::stats); `None` for a part
    /// without items, and for one that could not be made. If burn trains on several devices, the parts that it has made
    /// of this loader load the batches, so the statistics of this one stay empty.
    pub fn loader(&self) -> Option<&DataLoader<B>> {
        self.source.loader().ok().flatten().map(|loader| &**loader)
    }

    /// Returns the same loader with another source, which begins with the epoch that this one starts next.
    fn part(&self, source: Source<B>) -> Self {
        let epoch = Arc::new(Mutex::new(self.next_epoch()));
        Self { source, epoch, last_report: Arc::default(), ..self.shared() }
    }

    /// Returns the same loader, which counts epochs and leaves its reports together with this one.
    fn shared(&self) -> Self {
        Self {
            source: self.source.clone(),
            convert: Arc::clone(&self.convert),
            device: self.device.clone(),
            ahead: self.ahead,
            epoch: Arc::clone(&self.epoch),
            last_report: Arc::clone(&self.last_report),
        }
    }

    /// Returns the number of items that an epoch loads: the share of this rank, rounded up. 0 if it is not known.
    fn share(&self) -> usize {
        let share = |loader: &DataLoader<B>| {
            loader.samples().map_or(0, |samples| samples.div_ceil(loader.state().world_size()))
        };
        self.loader().map_or(0, share)
    }

    fn next_epoch(&self) -> u64 {
        *self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the next epoch, and counts it if it could be started. Returns `None` if there are no items.
    fn start(&self) -> Result<Option<Batches<B, O>>, DatasetError> {
        let Some(loader) = self.source.loader().map_err(DatasetError::new)? else {
            return Ok(None);
        };
        let mut epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        let iter = loader.epoch(*epoch).map_err(DatasetError::new)?;
        let (convert, device) = (Arc::clone(&self.convert), self.device.clone().unwrap_or_default());
        let batches = Batches::new(iter, self.ahead, convert, device).map_err(DatasetError::new)?;
        *epoch = epoch.saturating_add(1);
        Ok(Some(batches))
    }
}

impl<I: Send + 'static, O: Send + 'static> BurnLoader<Vec<I>, O>
where
    Vec<I>: Batch,
{
    /// Adapts a loader of lists of items. Burn's [`Batcher`] makes a batch of each list.
    ///
    /// The loader's workers load the items; the batcher runs in this process, because burn's tensors cannot
    /// be sent to another. A collation in the workers, with [`new`](Self::new), makes the tensors there.
    ///
    /// # Examples
    /// ```
    /// use burn_core::{
    ///     data::dataloader::{DataLoader as _, batcher::Batcher},
    ///     tensor::{Device, Tensor},
    /// };
    /// use loader_burn::BurnLoader;
    /// use loader_core::{DataLoader, TensorDataset};
    ///
    /// struct Sums;
    ///
    /// impl Batcher<f32, Tensor<1>> for Sums {
    ///     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
    ///         Tensor::from_floats([items.iter().sum::<f32>()], device)
    ///     }
    /// }
    ///
    /// # use loader_core::prelude::*;
    /// let items = TensorDataset::new(loader_core::Tensor::from_slice(&[1.0_f32, 2.0, 4.0], [3])?)?;
    /// let loader = DataLoader::builder(items.map(|row, _| Ok(row[0])))
    ///     .batch_size(2)
    ///     .collate(|items| Ok(items)) // the batch is the list of its items
    ///     .build()?;
    /// let loader = BurnLoader::batched(loader, Sums);
    /// assert_eq!(loader.iter().next().unwrap()?.into_scalar::<f32>(), 3.0);
    /// # anyhow::Ok(())
    /// ```
    pub fn batched(loader: DataLoader<Vec<I>>, batcher: impl Batcher<I, O> + 'static) -> Self {
        Self::new(loader, move |items, device| Ok::<_, BoxError>(batcher.batch(items, device)))
    }
}

impl<B> Source<B> {
    /// Returns the loader; `None` if there are no items.
    fn loader(&self) -> Result<Option<&Arc<DataLoader<B>>>, Arc<Error>> {
        match self {
            Self::Whole(loader) => Ok(Some(loader)),
            Self::Part(part) => Ok(part.loader.as_ref()),
            Self::Failed(error) => Err(Arc::clone(error)),
        }
    }
}

impl<B> Clone for Source<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(loader) => Self::Whole(Arc::clone(loader)),
            Self::Part(Part { items, loader, build }) => {
                Self::Part(Part { items: items.clone(), loader: loader.clone(), build: Arc::clone(build) })
            }
            Self::Failed(error) => Self::Failed(Arc::clone(error)),
        }
    }
}

impl<B: Batch> Part<B> {
    fn new(items: Range<usize>, build: Arc<Build<B>>) -> Result<Self, Error> {
        if items.is_empty() {
            return Ok(Self { items, loader: None, build });
        }
        let loader = build(items.clone())
            .map_err(|error| Error::Build { items: items.clone(), source: Arc::from(error) })?;
        let found = loader.samples();
        if found != Some(items.len()) {
            return Err(Error::WrongItems { items, found });
        }
        Ok(Self { items, loader: Some(Arc::new(loader)), build })
    }

    /// Returns the part of this part from its item `start` to before its item `end`.
    fn slice(&self, start: usize, end: usize) -> Result<Self, Error> {
        if start > end || end > self.items.len() {
            return Err(Error::OutOfRange { items: start..end, len: self.items.len() });
        }
        Self::new(self.items.start + start..self.items.start + end, Arc::clone(&self.build))
    }
}

impl<B: Batch, O: Send + 'static> BurnDataLoader<O> for BurnLoader<B, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(Epoch::new(self.start(), self.share(), Arc::clone(&self.last_report)))
    }

    fn num_items(&self) -> usize {
        match &self.source {
            Source::Whole(_) => self.share(),
            // Burn slices by this number, even if the loader of the part loads the share of a rank.
            Source::Part(part) => part.items.len(),
            Source::Failed(_) => 0,
        }
    }

    fn to_device(&self, device: &Device) -> Arc<dyn BurnDataLoader<O>> {
        Arc::new(Self { device: Some(device.clone()), ..self.shared() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn BurnDataLoader<O>> {
        let source = match &self.source {
            Source::Part(part) => {
                part.slice(start, end).map_or_else(|error| Source::Failed(Arc::new(error)), Source::Part)
            }
            Source::Whole(_) => Source::Failed(Arc::new(Error::NotSplittable)),
            Source::Failed(error) => Source::Failed(Arc::clone(error)),
        };
        Arc::new(self.part(source))
    }
}

impl<B, O> fmt::Debug for BurnLoader<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnLoader").field("device", &self.device).finish_non_exhaustive()
    }
}
