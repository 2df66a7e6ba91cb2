//! Collation: how samples become a batch.
//!
//! Samples are stacked one by one as they are loaded, so a worker holds one sample at a time and writes each
//! byte once, into the slot. Only a custom function gets a `Vec` of all samples of the batch.

mod any;
mod convert;
pub(crate) mod custom;
pub(crate) mod fill;
mod keep;
mod list;
mod pad;
mod rows;
mod single;
mod structure;
mod tensor_row;
#[cfg(test)]
mod testing;

use serde::{Serialize, de::DeserializeOwned};

pub use any::AnyStack;
pub use convert::Convert;
pub use custom::{BatchFunction, CollateWith, HashWith};
pub use keep::Keep;
pub use list::List;
pub use pad::{Padded, Padding, Ragged, Side, pad_sequences};
pub use rows::Row;
pub(crate) use rows::RowStack;
pub use single::{ConvertWith, DefaultConvert};
pub use tensor_row::TensorRow;

pub use crate::data::sample_digest::ContentHash;
use crate::{
    data::tensor::{DType, TensorError},
    text::config_line::config_line,
};
use fill::Fill;

/// Maximum number of samples for which a list reserves memory in advance, because a stream may have fewer
/// samples than its batch size.
const MAX_RESERVED: usize = 4096;

/// A type that can be a batch: any serde type that can be sent to another thread. Its tensors stay in shared
/// memory.
pub trait Batch: Serialize + DeserializeOwned + Send + 'static {}

impl<B: Serialize + DeserializeOwned + Send + 'static> Batch for B {}

/// A sample type with a default collation, like those that PyTorch's `default_collate` supports:
///
/// | sample | batch of `B` |
/// |---|---|
/// | a number `T` | `Tensor<T>`, shape `[B]` (`usize` as `u64`, `isize` as `i64`, `bool` as [`Bool`](crate::Bool)) |
/// | `[T; N]`, `[[T; M]; N]`, `[[[T; K]; M]; N]` | `Tensor<T>`, shape `[B, N]`, `[B, N, M]`, `[B, N, M, K]` |
/// | `Vec<T>`, `Box<[T]>`, `Vec<[T; N]>` | `Tensor<T>`, shape `[B, len]`, `[B, len, N]` |
/// | `Tensor<T>` of shape `S`, [`TensorRow<T>`](crate::TensorRow) | `Tensor<T>`, shape `[B, ..S]` |
/// | [`Ragged<R>`](Ragged): a sequence of any length | [`Padded`]: `Tensor<T>`, shape `[B, longest, ..S]`, and the lengths |
/// | `String`, `&'static str`, `char` | `Vec<String>`, `Vec<String>`, `Vec<char>` |
/// | a tuple (up to 8), `()` | the tuple of batches |
/// | `HashMap<K, S>`, `BTreeMap<K, S>` | the map of batches |
/// | [`List<S>`](List), `Vec<String>`, `Vec<Tensor<T>>` | a `Vec` with a batch for each position; the lists must have the same length |
/// | `Option<S>` | `Option` of a batch; the samples must be all `Some` or all `None` |
/// | [`Keep<S>`](Keep): any serde type | `Vec<S>`, the samples unchanged |
/// | a struct with `#[derive(Sample)]` | a struct of batches, with `Batch` appended to its name |
///
/// Numbers keep their type (PyTorch converts `float` to `float64`). All samples of a batch must have the same
/// shape.
///
/// Differences from PyTorch: PyTorch refuses every `None`. It uses the keys of the first sample's map and
/// silently drops other keys; here all samples must have the same keys. It converts a tuple to a list.
#[diagnostic::on_unimplemented(
    message = "samples of type `{Self}` have no default collation",
    label = "it does not implement `Sample`",
    note = "put `#[derive(Sample)]` on a struct of numbers, arrays, tensors or strings; for any other type give the loader a function with `.collate(...)`, or wrap it in `Keep` to get a `Vec` of the samples"
)]
pub trait Sample: Sized + Send + 'static {
    /// A batch of such samples.
    type Batch: Batch;
    /// Builds the batch.
    type Stack: Stack<Sample = Self, Batch = Self::Batch>;

    /// Starts a batch of at most `samples` samples.
    fn stack(samples: usize) -> Self::Stack;

    /// Adds the content of the sample to `hash`, for the [`SampleDigest`](crate::SampleDigest) of the epoch.
    /// The loader calls it only with the option [`digest`](crate::Builder::digest).
    fn hash_content(&self, hash: &mut ContentHash);
}

/// Builds a batch from samples that are added one by one.
pub trait Stack: Sized {
    /// One sample.
    type Sample;
    /// The finished batch.
    type Batch;

    /// Adds a sample.
    ///
    /// # Errors
    /// Returns an error if the sample does not fit the samples added before.
    fn push(&mut self, sample: Self::Sample) -> Result<(), CollateError>;

    /// True if the next [`push`](Self::push) may create a tensor, which must then be allocated in the slot of
    /// the batch. True is always correct, only slower. A stack that creates all its tensors with the first
    /// sample returns false afterwards.
    fn makes_tensors(&self) -> bool {
        true
    }

    /// Finishes the batch.
    ///
    /// # Errors
    /// Returns an error if the batch cannot be created.
    fn finish(self) -> Result<Self::Batch, CollateError>;

    /// Returns the number of tokens of `batch` without and with padding, which main adds to
    /// [`EpochReport::fill`](crate::EpochReport::fill). Returns `None` by default: keep the default if batches are
    /// never padded. Main calls this function for each batch, so it must be cheap.
    fn fill(batch: &Self::Batch) -> Option<Fill> {
        let _ = batch;
        None
    }
}

/// Error returned when samples cannot be collated.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}{}", field_prefix(field), config_of(field, problem))]
pub struct CollateError {
    /// Path to the field of the sample, outermost name first; empty for the sample itself.
    pub field: Vec<String>,
    /// What is wrong with the field.
    #[source]
    pub problem: CollateProblem,
}

/// Reason for a [`CollateError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollateProblem {
    /// The shape differs from that of the first sample.
    #[error(
        "shape {found:?} differs from the batch's first sample, {expected:?}; pad it, or collate with a function of your own"
    )]
    Ragged {
        /// Shape of the first sample.
        expected: Vec<usize>,
        /// Shape of this sample.
        found: Vec<usize>,
    },
    /// The dtype differs from that of the first sample.
    #[error("dtype {found} differs from the batch's first sample, {expected}; convert one of them")]
    MixedDTypes {
        /// Dtype of the first sample.
        expected: DType,
        /// Dtype of this sample.
        found: DType,
    },
    /// The value is null. Only records whose fields are known at run time have such values.
    #[error(
        "it is null, which no column of a batch can hold; leave out the record (in a stream of records, with `drop_nulls`), \
         or fill the field if its values are numbers"
    )]
    Null,
    /// A key of the first sample is not in this sample.
    #[error(
        "key {key} is missing; all samples of a batch must have the same keys; remove the key from the other samples, \
         or rename keys of the same data to one name (option `rename` of tar archives)"
    )]
    MissingKey {
        /// The key, in its `Debug` form.
        key: String,
    },
    /// A key of this sample is not in the first sample.
    #[error(
        "key {key} is new; all samples of a batch must have the same keys; remove the key, or rename keys \
         of the same data to one name (option `rename` of tar archives)"
    )]
    NewKey {
        /// The key, in its `Debug` form.
        key: String,
    },
    /// A list is longer or shorter than the list of the first sample.
    #[error(
        "the list has {found} items, but the list of the batch's first sample has {expected}; make them equally \
         long, or wrap them in `Keep`"
    )]
    ListLength {
        /// Length of the list in the first sample.
        expected: usize,
        /// Length of the list in this sample.
        found: usize,
    },
    /// An option is `None` in some samples and `Some` in others.
    #[error(
        "it is `{}`, but in the batch's first sample it is `{}`; put such samples into different batches, or wrap the \
         option in `Keep`",
        if *here { "None" } else { "Some" },
        if *here { "Some" } else { "None" }
    )]
    MixedOptions {
        /// True if the option is `None` in this sample, false if it is `None` in the first sample.
        here: bool,
    },
    /// A single number cannot be padded.
    #[error("a single number is not a sequence, so it cannot be padded; add a first dimension")]
    NotASequence,
    /// A tensor of the batch cannot be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The user's function returned an error.
    #[error("{0:#}")]
    Custom(anyhow::Error),
}

impl CollateError {
    /// Returns the same error for a sample that contains this one in its field `name`.
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

/// Says which line of a config lets records be collated whose field `field` has this problem.
fn config_of(field: &[String], problem: &CollateProblem) -> String {
    // The options of a config take the names of fields of records, not of fields in these.
    let [field] = field else { return String::new() };
    let line = match problem {
        CollateProblem::Ragged { expected, found } => match (&expected[..], &found[..]) {
            ([_, expected @ ..], [_, found @ ..]) if expected == found => config_line("pad", field, 0),
            _ => return String::new(),
        },
        CollateProblem::MixedDTypes { expected, found } => {
            // A float holds an integer, and a number holds a boolean.
            let is_float =
                |dtype: &DType| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
            let both = [*expected, *found];
            let float = both.into_iter().find(is_float);
            let both = float.or_else(|| both.into_iter().find(|dtype| *dtype != DType::Bool));
            config_line("dtypes", field, format!("\"{}\"", both.unwrap_or(*expected)))
        }
        CollateProblem::Null => config_line("fill", field, 0),
        _ => return String::new(),
    };
    format!("; for records, set {line}")
}

/// How a loader collates samples of type `S`: by the sample's type ([`DefaultCollate`]) or with a function
/// ([`CollateWith`]). Without batches, how it converts single samples ([`DefaultConvert`], [`ConvertWith`]).
/// The loader sends this value to the workers with the dataset.
pub trait Collate<S>: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// A batch.
    type Batch: Batch;
    /// Builds the batch.
    type Stack: Stack<Sample = S, Batch = Self::Batch>;

    /// True if a batch is a single sample. Such a loader has no batch size.
    const UNBATCHED: bool = false;

    /// True if the samples are stacked by their type as they are loaded, and none of them is kept.
    #[doc(hidden)]
    const BY_TYPE: bool = false;

    /// True if [`hash_content`](Self::hash_content) is implemented. If it is false, the default adds nothing.
    #[doc(hidden)]
    const HASHES_SAMPLES: bool = false;

    /// Starts a batch of at most `samples` samples.
    fn stack(&self, samples: usize) -> Self::Stack;

    /// Adds the content of a sample to `hash`, for the digest of the epoch.
    #[doc(hidden)]
    fn hash_content(&self, sample: &S, hash: &mut ContentHash) {
        let _ = (sample, hash);
    }
}

/// Collates by the sample's type, see [`Sample`].
#[derive(Debug, Clone, Copy, Default, Serialize, serde::Deserialize)]
pub struct DefaultCollate;

impl<S: Sample> Collate<S> for DefaultCollate {
    type Batch = S::Batch;
    type Stack = S::Stack;

    const BY_TYPE: bool = true;
    const HASHES_SAMPLES: bool = true;

    fn stack(&self, samples: usize) -> S::Stack {
        S::stack(samples)
    }

    fn hash_content(&self, sample: &S, hash: &mut ContentHash) {
        sample.hash_content(hash);
    }
}
