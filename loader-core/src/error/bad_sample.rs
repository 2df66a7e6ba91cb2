//! A sample that could not be loaded.

use std::fmt;

/// A sample that could not be loaded and was skipped or replaced; see [`OnBadSample`](crate::OnBadSample).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadSample {
    /// Number of the batch in its epoch.
    pub batch: u64,
    /// Index of the sample. For an iterable dataset, its position in the shard.
    pub index: usize,
    /// Number of the shard among the shards of this process; `None` for a map-style dataset.
    pub shard: Option<usize>,
    /// Index of the sample that replaces it; `None` if it was skipped. If the replacement is bad too, it is
    /// listed as well.
    pub replaced_by: Option<usize>,
    /// Why it could not be loaded: the error and its causes, or the message of the panic.
    pub reason: String,
}

impl fmt::Display for BadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, index, shard, replaced_by, reason } = self;
        write!(f, "sample {index} of ")?;
        if let Some(shard) = shard {
            write!(f, "shard {shard}, ")?;
        }
        write!(f, "batch {batch} is ")?;
        match replaced_by {
            Some(other) => write!(f, "replaced by sample {other}")?,
            None => f.write_str("skipped")?,
        }
        write!(f, ": {reason}")
    }
}
