//! How samples become a batch.
//!
//! Samples are stacked one by one as they are loaded, so that a worker holds one sample, not a batch of them, and each of its
//! bytes is written once: into the slot. (The other way, collecting a `Vec` and collating it, is what a custom function gets.)

mod convert;
mod custom;
mod keep;
mod list;
mod pad;
mod rows;
mod single;
mod structure;
#[cfg(test)]
mod testing;

use serde::{Serialize, de::DeserializeOwned};

pub use convert::Convert;
pub use custom::{CollateWith, Collected};
pub use keep::{IntoListStack, Keep, ListStack, UnitStack};
pub use list::{List, ListPlaces, OptionStack, VecPlaces};
pub use pad::{Padded, Padding, Ragged, RaggedStack, Side, pad_sequences};
pub use rows::{Row, RowStack};
pub use single::{ConvertWith, DefaultConvert, Single};
pub use structure::MapStack;

/// Most samples that a list makes room for beforehand: a stream may have fewer than its batch size.
const MOST_RESERVED: usize = 4096;

/// What can be a batch: any serde type that can move to another thread. Tensors in it stay in shared memory.
pub trait Batch: Serialize + DeserializeOwned + Send + 'static {}

impl<B: Serialize + DeserializeOwned + Send + 'static> Batch for B {}

/// A sample that knows how a batch of its kind looks, as PyTorch's `default_collate` does:
///
/// | sample | batch of `B` |
/// |---|---|
/// | a number `T` | `Tensor<T>`, shape `[B]` (`usize` as `u64`, `isize` as `i64`, `bool` as `u8`) |
/// | `[T; N]`, `[[T; M]; N]`, `[[[T; K]; M]; N]` | `Tensor<T>`, shape `[B, N]`, `[B, N, M]`, `[B, N, M, K]` |
/// | `Vec<T>`, `Box<[T]>`, `Vec<[T; N]>` | `Tensor<T>`, shape `[B, len]`, `[B, len, N]` |
/// | `Tensor<T>` of shape `S`, [`TensorRow<T>`](crate::TensorRow) | `Tensor<T>`, shape `[B, ..S]` |
/// | [`Ragged<R>`](Ragged): a sequence of any length | [`Padded`]: `Tensor<T>`, shape `[B, longest, ..S]`, and the lengths |
/// | `String`, `&'static str`, `char` | `Vec<String>`, `Vec<String>`, `Vec<char>` |
/// | a tuple (up to 8), `()` | the tuple of batches |
/// | `HashMap<K, S>`, `BTreeMap<K, S>` | the map of batches |
/// | [`List<S>`](List), `Vec<String>`, `Vec<Tensor<T>>` | a `Vec` of batches, one for each place; the lists must be equally long |
/// | `Option<S>` | `Option` of a batch; the samples must be all there or all missing |
/// | [`Keep<S>`](Keep): any serde type | `Vec<S>`, as they are |
/// | a struct with `#[derive(Sample)]` | a struct of batches, named like it with `Batch` behind |
///
/// Numbers keep their type (PyTorch makes `float` a `float64`). All samples of a batch must have the same shape.
///
/// Where PyTorch does otherwise: it refuses `None` always; it takes the first sample's keys of a map and drops others silently, where
/// here each sample must have the same; it makes a list of a tuple.
#[diagnostic::on_unimplemented(
    message = "samples of type `{Self}` have no default collation",
    label = "it does not implement `Sample`",
    note = "put `#[derive(Sample)]` on a struct of numbers, arrays, tensors or strings; for any other type give the loader a function with `.collate(...)`, or wrap it in `Keep` to get a `Vec` of the samples"
)]
pub trait Sample: Sized + Send + 'static {
    /// A batch of such samples.
    type Batch: Batch;
    /// Puts the batch together.
    type Stack: Stack<Sample = Self, Batch = Self::Batch>;

    /// Starts a batch of at most `samples` samples.
    fn stack(samples: usize) -> Self::Stack;
}

/// A batch in the making: takes one sample after the other.
pub trait Stack: Sized {
    /// One sample.
    type Sample;
    /// The finished batch.
    type Batch;

    /// Adds a sample.
    ///
    /// # Errors
    /// When the sample does not fit the ones before.
    fn push(&mut self, sample: Self::Sample) -> Result<(), CollateError>;

    /// Whether the next push may make a tensor, which must then lie where the batch does. True if in doubt, which is only slower: a
    /// stack that makes all of its tensors with the first sample says so.
    fn makes_tensors(&self) -> bool {
        true
    }

    /// Ends the batch.
    ///
    /// # Errors
    /// When the batch cannot be made.
    fn finish(self) -> Result<Self::Batch, CollateError>;
}

/// Why samples do not form a batch.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", field_prefix(field))]
pub struct CollateError {
    /// Path to the field of the sample, outermost name first; empty for the sample itself.
    pub field: Vec<String>,
    /// What is wrong.
    #[source]
    pub problem: CollateProblem,
}

/// What is wrong with a sample among others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollateProblem {
    /// Its shape differs from the first sample's.
    #[error(
        "shape {found:?} differs from the batch's first sample, {expected:?}; pad it, or collate with a function of your own"
    )]
    Ragged {
        /// Shape of the first sample.
        expected: Vec<usize>,
        /// Shape of this one.
        found: Vec<usize>,
    },
    /// Its keys differ from the first sample's.
    #[error("{problem}; all samples of a batch need the same keys")]
    Keys {
        /// Which key is missing or new.
        problem: String,
    },
    /// It is a list that is not as long as the first sample's.
    #[error(
        "a list of {found} differs from the batch's first, of {expected}; make them equally long, or wrap them in `Keep`"
    )]
    ListLength {
        /// Length of the first sample's.
        expected: usize,
        /// Length of this one.
        found: usize,
    },
    /// Some are there, some are missing.
    #[error(
        "it is {}, but in the batch's first sample it is not; group such samples in batches, or wrap the option in `Keep`",
        if *here { "missing" } else { "there" }
    )]
    Missing {
        /// True when it is this one that is missing, false when it is the first.
        here: bool,
    },
    /// A number was to be padded.
    #[error("a single number is no sequence that can be padded; give it a first dimension")]
    NotASequence,
    /// The batch is larger than memory.
    #[error(transparent)]
    Tensor(#[from] crate::TensorError),
    /// The user's function failed.
    #[error("{0:#}")]
    Custom(anyhow::Error),
}

impl CollateError {
    /// The same error, seen from the sample that has it in its field `name`.
    #[must_use]
    pub fn in_field(mut self, name: impl Into<String>) -> Self {
        self.field.insert(0, name.into());
        self
    }
}

impl From<CollateProblem> for CollateError {
    fn from(problem: CollateProblem) -> Self {
        Self { field: Vec::new(), problem }
    }
}

fn field_prefix(field: &[String]) -> String {
    if field.is_empty() { String::new() } else { format!("field `{}`: ", field.join(".")) }
}

/// How a loader collates samples of type `S`: by the sample's type ([`DefaultCollate`]) or by a function ([`CollateWith`]); or how it
/// converts single ones ([`DefaultConvert`], [`ConvertWith`]). It goes to the workers with the dataset.
pub trait Collate<S>: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// A batch.
    type Batch: Batch;
    /// Puts it together.
    type Stack: Stack<Sample = S, Batch = Self::Batch>;

    /// Whether a batch is a single sample: such a loader has no batch size.
    const UNBATCHED: bool = false;

    /// Starts a batch of at most `samples` samples.
    fn stack(&self, samples: usize) -> Self::Stack;
}

/// Collates by the sample's type, see [`Sample`].
#[derive(Debug, Clone, Copy, Default, Serialize, serde::Deserialize)]
pub struct DefaultCollate;

impl<S: Sample> Collate<S> for DefaultCollate {
    type Batch = S::Batch;
    type Stack = S::Stack;

    fn stack(&self, samples: usize) -> S::Stack {
        S::stack(samples)
    }
}
