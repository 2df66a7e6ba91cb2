//! Wraps datasets of burn as datasets of the loader.

use std::marker::PhantomData;

use burn_core::data::dataset::Dataset as BurnDatasetTrait;
use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A dataset of burn as a [`Dataset`], so that workers can load it.
///
/// The loader sends datasets to workers, so `D` must implement `Serialize` and `Deserialize`. A trait object
/// (`Arc<dyn Dataset<I>>`) and burn's own types, such as `InMemDataset` and `MapperDataset`, do not. Write a
/// type of your own that holds what the dataset is opened from, such as a path.
///
/// The loader asks for one item at a time ([`get`](BurnDatasetTrait::get)).
///
/// If the items have no default collation, list them with `.collate(|items| Ok(items))`; see
/// [`BurnLoader::batched`](crate::BurnLoader::batched).
///
/// # Examples
/// ```
/// use burn_core::data::dataset::{Dataset, DatasetError};
/// use loader_burn::BurnDataset;
/// use loader_core::DataLoader;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Squares;
///
/// impl Dataset<f32> for Squares {
///     fn get(&self, index: usize) -> Result<f32, DatasetError> {
///         Ok((index * index) as f32)
///     }
///
///     fn len(&self) -> usize {
///         4
///     }
/// }
///
/// let loader = DataLoader::builder(BurnDataset::new(Squares)).batch_size(4).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [0.0, 1.0, 4.0, 9.0]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct BurnDataset<D, I> {
    dataset: D,
    item: PhantomData<fn() -> I>,
}

impl<D: BurnDatasetTrait<I>, I> BurnDataset<D, I> {
    /// Wraps `dataset`.
    pub fn new(dataset: D) -> Self {
        Self { dataset, item: PhantomData }
    }
}

impl<D, I> Dataset for BurnDataset<D, I>
where
    D: BurnDatasetTrait<I> + Serialize + DeserializeOwned + 'static,
    I: Send + 'static,
{
    type Sample = I;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<I> {
        Ok(self.dataset.get(index)?)
    }
}
