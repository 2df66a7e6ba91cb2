//! The dataset [`IndexedTar`].

use derive_where::derive_where;
use loader_core::{Dataset, SampleContext, Tensor, TensorError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    TarShards,
    members::{End, Members},
    samples::{Samples, Wanted},
};
use crate::{
    error::{DataError, DataProblem, Result},
    index::{self, IndexKind, IndexStatus, StoredIndex},
    parallel,
    record::Record,
    shard_items::ItemError,
    source::DataFile,
};

/// Samples from tar archives in WebDataset's layout, with random access. [`TarShards::indexed`] makes it.
///
/// Making it reads the headers of all members, on all cores, and skips their data. The index is stored for
/// the next time (see [`IndexPlace`](crate::IndexPlace)). It needs 8 bytes per sample, in memory that all
/// workers share. A sample is one read of the file, of all its members; if [`fields`](TarShards::fields)
/// selects some, only they are read. The samples are numbered in the order of the files, and decoded as by
/// [`TarShards`].
///
/// The archives must not be compressed. A damaged archive is an error when the index is made; only damaged
/// data of a member, or a field that a sample has twice, is an error of the sample.
///
/// # Examples
/// ```
/// use loader_core::{DataLoader, Dataset};
/// use loader_data::{FieldOptions, TarShards};
///
/// # let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar");
/// # std::env::set_current_dir(fixtures)?;
/// let samples = TarShards::open("shard-{0..2}.tar")?.fields(FieldOptions::new().select(["cls"])).indexed()?;
/// assert_eq!(samples.len(), 16);
/// let loader = DataLoader::builder(samples).batch_size(8).shuffle(true).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<i64>("cls")?.shape(), [8]);
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct IndexedTar<R = Record> {
    shards: TarShards<R>,
    /// For each file, the offsets of its samples and the end of its last member.
    offsets: Tensor<u64>,
    /// For each file, the number of its first sample; then the number of samples.
    first_samples: Tensor<u64>,
}

impl<R: DeserializeOwned + Send + 'static> IndexedTar<R> {
    pub(super) fn new(shards: TarShards<R>) -> Result<Self, DataError> {
        let offsets = parallel::map(shards.files.len(), |file| offsets_of(&shards, file))?;
        let mut first_samples = vec![0];
        for offsets in &offsets {
            first_samples.push(first_samples[first_samples.len() - 1] + offsets.len() as u64 - 1);
        }
        let share = |offsets: &[u64]| -> Result<_, TensorError> {
            Ok((
                Tensor::from_slice(offsets, [offsets.len()])?,
                Tensor::from_slice(&first_samples, [first_samples.len()])?,
            ))
        };
        let (offsets, first_samples) = share(&offsets.concat()).map_err(|error| {
            DataError::new("the index of the archives", DataProblem::Memory(error.to_string()))
        })?;
        Ok(Self { shards, offsets, first_samples })
    }

    fn read(&self, index: usize, cx: &mut SampleContext) -> Result<R> {
        let first = self.first_samples.as_slice();
        // The last file whose first sample is not after this one; a file without samples has the same first
        // sample as the next file.
        let file = first.partition_point(|&first| first <= index as u64) - 1;
        let Some(&[start, end]) = self.offsets.as_slice().get(index + file..index + file + 2) else {
            let reason = format!("there are {} samples, and sample {index} was asked for", self.len());
            return Err(DataError::new(
                "the index of the archives",
                DataProblem::Malformed { format: "an index", reason },
            ));
        };
        let blob = self.shards.files.open(file)?;
        let decoding = &self.shards.decoding;
        let is_wanted = |field: &str| decoding.is_wanted(field);
        let wanted = Wanted { is_wanted: &is_wanted, max_sample_bytes: self.shards.max_sample_bytes };
        let members = Members::part(&blob, start..end, decoding.fields.selected().is_some());
        let mut samples = Samples::new(members);
        let sample = samples.next(wanted);
        let sample = sample.ok_or_else(|| blob.error(start, DataProblem::Truncated))?;
        let sample = sample.map_err(ItemError::into_error)?;
        if samples.has_more() {
            let reason = "it ends a sample before the archive does; make the index again with `loader index`"
                .to_owned();
            return Err(blob.error(start, DataProblem::Malformed { format: "an index", reason }));
        }
        decoding.row(sample, &blob.file().location, cx.rng())
    }
}

/// Returns the offsets of the samples of a file and the end of its last member.
fn offsets_of<R>(shards: &TarShards<R>, number: usize) -> Result<Vec<u64>> {
    let (kind, file) = (kind(shards.end), shards.files.get(number));
    if let Some(stored) = index::load(&shards.index, kind, &file).filter(|offsets| fits(offsets, &file)) {
        return Ok(stored);
    }
    let blob = shards.files.open(number)?;
    let mut samples = Samples::new(Members::headers(&blob, shards.end)?);
    let wanted = Wanted { is_wanted: &|_| false, max_sample_bytes: 0 };
    let mut offsets = Vec::new();
    while let Some(sample) = samples.next(wanted) {
        offsets.push(sample.map_err(ItemError::into_error)?.start);
    }
    offsets.push(samples.end());
    index::store(&shards.index, kind, &file, &offsets);
    Ok(offsets)
}

/// Describes the stored indexes of the files.
pub(super) fn check<R>(shards: &TarShards<R>) -> Vec<StoredIndex> {
    let of_file = |file: DataFile| {
        let status =
            |offsets: &[u64]| if fits(offsets, &file) { IndexStatus::Current } else { IndexStatus::Damaged };
        index::check(&shards.index, kind(shards.end), &file, status)
    };
    (0..shards.files.len()).map(|number| of_file(shards.files.get(number))).collect()
}

fn kind(end: End) -> IndexKind {
    // An archive that has no end must not be accepted because an index was stored when that was allowed.
    match end {
        End::Marker => *b"tar----1",
        End::Any => *b"tar-any1",
    }
}

/// True if `offsets` can be those of `file`.
fn fits(offsets: &[u64], file: &DataFile) -> bool {
    offsets.is_sorted_by(|one, next| one < next) && offsets.last().is_some_and(|&end| end <= file.len)
}

impl<R: DeserializeOwned + Send + 'static> Dataset for IndexedTar<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.first_samples.as_slice().last().map_or(0, |&len| len as usize)
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<R> {
        Ok(self.read(index, cx)?)
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions, and the
    /// options.
    fn fingerprint(&self) -> String {
        format!("indexed_tar({}{})", self.shards.files.fingerprint(), self.shards.decoding.fingerprint())
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        Ok(self.shards.decoding.validate()?)
    }
}
