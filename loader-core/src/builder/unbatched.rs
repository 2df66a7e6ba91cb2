//! Loading without batches: PyTorch's `batch_size=None`.

use loader_ipc::function::Function;

use super::{Builder, Settings};
use crate::{
    data::{
        collate::{Batch, ConvertWith, DefaultConvert},
        fetch::DatasetKind,
        function::{ConvertFn, ConvertFnWith, Params, WithParams},
    },
    error::Error,
    options::default,
};

impl<K: DatasetKind, C, W> Builder<K, C, W> {
    /// Loads without batches, as PyTorch does with `batch_size=None`: each item of the iterator is one
    /// sample, which its [`Convert`](crate::Convert) implementation converts, and
    /// [`len`](crate::DataLoader::len) is the number of samples. Replaces [`collate`](Self::collate).
    /// Excludes [`batch_size`](Self::batch_size), [`drop_last`](Self::drop_last) and
    /// [`batch_sampler`](Self::batch_sampler).
    ///
    /// It is not needed for a dataset that reads whole batches at once:
    /// [`Dataset::get_many`](crate::Dataset::get_many) gets all indices of a batch together, from any
    /// sampler.
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
    pub fn unbatched(self) -> Builder<K, DefaultConvert, W> {
        self.with_collate(DefaultConvert)
    }

    /// Loads without batches, as [`unbatched`](Self::unbatched) does, and converts each sample with
    /// `function`, which runs in the workers. The function must not capture anything; see
    /// [`convert_with`](Self::convert_with) for a function with parameters. Tensors that it makes are
    /// allocated in shared memory. `.unbatched().convert(function)` is the same.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20], [2])?)?;
    /// let texts = DataLoader::builder(numbers).convert(|number| Ok(format!("{:03}", number[0]))).build()?;
    /// let texts: Vec<String> = texts.iter()?.collect::<Result<_, _>>()?;
    /// assert_eq!(texts, ["010", "020"]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    // If a closure captures something, the compiler's error shows the next line.
    pub fn convert<B: Batch /* to capture, use `convert_with` */>(
        self,
        function: fn(K::Sample) -> anyhow::Result<B>,
    ) -> Builder<K, ConvertFn<K::Sample, B>, W> {
        self.with_collate(ConvertWith(Function::new(function)))
    }

    /// Loads without batches and converts each sample with `function`, which also gets `params`. The
    /// parameters are sent to the workers with the dataset. Their type can be any serde type that bincode can
    /// encode.
    #[must_use]
    pub fn convert_with<P: Params, B: Batch>(
        self,
        params: P,
        function: fn(&P, K::Sample) -> anyhow::Result<B>,
    ) -> Builder<K, ConvertFnWith<P, K::Sample, B>, W> {
        self.with_collate(ConvertWith(WithParams::new(params, function)))
    }
}

impl Settings {
    /// Checks that no option is set that needs batches.
    pub(super) fn check_unbatched(&self) -> Result<(), Error> {
        self.options.check_batch_size()?;
        let options = &self.options;
        let others = [
            ("batch_size", options.batch_size.is_some_and(|size| size != default::batch_size())),
            ("drop_last", options.drop_last.unwrap_or_else(default::drop_last)),
            ("batch_sampler", self.batch_sampler.is_some()),
        ];
        match others.into_iter().find(|(_, given)| *given) {
            Some((second, _)) => Err(Error::ConflictingOptions {
                first: "unbatched",
                second,
                reason: "without batches this option has no effect; leave one of the two out",
            }),
            None => Ok(()),
        }
    }
}
