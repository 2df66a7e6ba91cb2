//! Loading without batches: PyTorch's `batch_size=None`.

use super::{Builder, Settings};
use crate::{
    collate::{Batch, Convert, ConvertWith, DefaultConvert},
    error::Error,
    fetch::DatasetKind,
};

impl<K: DatasetKind, C, W> Builder<K, C, W> {
    /// Loads without batches, as PyTorch does with `batch_size=None`: each item of the iterator is one sample, converted by its type
    /// (see [`Convert`]), and [`len`](crate::DataLoader::len) is the number of samples. Takes the place of [`collate`](Self::collate);
    /// excludes [`batch_size`](Self::batch_size), [`drop_last`](Self::drop_last) and [`batch_sampler`](Self::batch_sampler).
    ///
    /// For a dataset that reads whole batches, [`Dataset::get_many`](crate::Dataset::get_many) gets a batch's indices together, from any sampler.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let dataset = TensorDataset::new((Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?,))?;
    /// let loader = DataLoader::builder(dataset).unbatched().build()?;
    /// assert_eq!(loader.len(), Some(2));
    /// let (row,) = loader.iter()?.next().unwrap()?;
    /// assert_eq!((row.shape(), row.as_slice()), ([2].as_slice(), [1.0, 2.0].as_slice()));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn unbatched(self) -> Builder<K, DefaultConvert, W>
    where
        K::Sample: Convert,
    {
        let Self { kind, worker_init, settings, .. } = self;
        Builder { kind, collate: DefaultConvert, worker_init, settings }
    }

    /// Loads without batches, as [`unbatched`](Self::unbatched), and converts each sample with `function`, which runs in the workers
    /// and must not capture anything. Tensors made in it lie in shared memory from the start.
    #[must_use]
    pub fn convert<F, B>(self, function: F) -> Builder<K, ConvertWith<F, B>, W>
    where
        F: Fn(K::Sample) -> anyhow::Result<B> + Copy + Send + Sync + 'static,
        B: Batch,
    {
        let Self { kind, worker_init, settings, .. } = self;
        Builder { kind, collate: ConvertWith::new(function), worker_init, settings }
    }
}

impl Settings {
    /// Checks that no option speaks of batches.
    pub(super) fn check_unbatched(&self) -> Result<(), Error> {
        let options = &self.options;
        let others = [
            ("batch_size", options.batch_size.is_some_and(|size| size != 1)),
            ("drop_last", options.drop_last.unwrap_or(false)),
            ("batch_sampler", self.batch_sampler.is_some()),
        ];
        match others.into_iter().find(|(_, given)| *given) {
            Some((second, _)) => Err(Error::ConflictingOptions {
                first: "unbatched",
                second,
                reason: "without batches there is nothing to size, drop or sample; leave one of them out",
            }),
            None => Ok(()),
        }
    }
}
