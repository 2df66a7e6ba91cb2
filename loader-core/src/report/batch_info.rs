//! What the user learns about a batch apart from its content.

use loader_ipc::frame;

use crate::{data::sample_digest::SampleDigest, error::bad_sample::BadSample};

/// What is known of a batch apart from its content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchInfo {
    /// Number of the batch in the epoch, from 0.
    pub number: u64,
    /// Indices of its samples, in order. Empty for an iterable dataset, whose samples have no index.
    pub indices: Vec<usize>,
    /// Number of its samples.
    pub samples: usize,
    /// The shard of the iterable dataset that it was read from, counted in this process.
    pub shard: Option<usize>,
    /// The worker that loaded it; `None` if the main process did.
    pub worker: Option<usize>,
    /// Number of bytes of shared memory that it takes, with padding and with tensors that collation has discarded; 0 if
    /// the main process loaded it.
    pub bytes: u64,
    /// Samples of it that were skipped or replaced.
    pub bad_samples: Vec<BadSample>,
    /// Number of samples at the end of the batch that repeat those of another rank, so that all ranks load
    /// equally many; 0 in all batches but the last.
    pub repeated: usize,
    /// Digest of the samples except the repeated ones; `None` without the option
    /// [`digest`](crate::Builder::digest).
    pub digest: Option<SampleDigest>,
    /// True if the batch has failed and a resumed run reads it again.
    pub(crate) is_read_again: bool,
}

impl BatchInfo {
    /// Describes a batch of the samples `indices`, from which the `bad` ones were left out or replaced.
    /// Another rank loads the last `repeated` of `indices` too.
    pub(crate) fn of_indices(
        number: u64,
        mut indices: Vec<usize>,
        mut repeated: usize,
        worker: Option<usize>,
        bad: Vec<frame::BadSampleRecord>,
    ) -> Self {
        if !bad.is_empty() {
            let mut good: Vec<Option<usize>> = indices.into_iter().map(Some).collect();
            for sample in &bad {
                if let Some(index) = good.get_mut(sample.position as usize) {
                    *index = sample.replaced_by.map(narrow);
                }
            }
            repeated = good.iter().rev().take(repeated).flatten().count();
            indices = good.into_iter().flatten().collect();
        }
        let bad_samples = bad.into_iter().map(|sample| for_user(sample, number, None)).collect();
        let samples = indices.len();
        repeated = repeated.min(samples);
        Self {
            number,
            samples,
            indices,
            shard: None,
            worker,
            bytes: 0,
            bad_samples,
            repeated,
            digest: None,
            is_read_again: false,
        }
    }

    /// Describes a batch of the next `items` of a shard, from which the `bad` ones were left out.
    pub(crate) fn of_shard(
        number: u64,
        shard: usize,
        items: u64,
        worker: Option<usize>,
        bad: Vec<frame::BadSampleRecord>,
    ) -> Self {
        let samples = narrow(items).saturating_sub(bad.len());
        let bad_samples = bad.into_iter().map(|sample| for_user(sample, number, Some(shard))).collect();
        Self {
            number,
            indices: Vec::new(),
            samples,
            shard: Some(shard),
            worker,
            bytes: 0,
            bad_samples,
            repeated: 0,
            digest: None,
            is_read_again: false,
        }
    }

    /// Sets the digest from the hashes of the samples, in their order. Returns false and sets nothing if the
    /// number of hashes differs from the number of samples.
    pub(crate) fn set_digest(&mut self, hashes: &[u128]) -> bool {
        let is_complete = hashes.len() == self.samples;
        if is_complete {
            self.digest = Some(SampleDigest::of(&hashes[..self.samples - self.repeated]));
        }
        is_complete
    }
}

/// Returns a bad sample as the user sees it.
fn for_user(sample: frame::BadSampleRecord, batch: u64, shard: Option<usize>) -> BadSample {
    let frame::BadSampleRecord { index, replaced_by, reason, .. } = sample;
    BadSample { batch, index: narrow(index), shard, replaced_by: replaced_by.map(narrow), reason }
}

/// A number that comes from another process can be larger than a `usize`.
fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
