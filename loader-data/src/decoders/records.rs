//! The dataset [`DecodedRecords`].

use std::collections::BTreeSet;

use loader_core::{
    Dataset, IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator, internal::OutOfPlace,
};
use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

use super::field::FieldDecoder;
use crate::{
    error::{DataError, DataProblem, Position, Result},
    record::{Record, Value},
};

/// The records of a dataset of any format. Decoders convert fields of encoded images and audio to tensors, and
/// fields of text to tokens; see [`FieldDecoder`]. It is map-style if `D` is, and iterable if `D` is.
///
/// Random transforms draw from the sample's own generator, one field after the other, so the samples are the
/// same with any number of workers. To shuffle a stream in a buffer, give the shuffled stream as `D`: the
/// buffer then holds encoded files.
///
/// # Errors
/// If a field cannot be decoded, its sample fails with a [`DataError`] that names the field, the path of the file or
/// the key and the archive if the record has them, and in a map-style dataset the index of the record. For a stream,
/// the loader adds the shard and the position in it.
///
/// # Examples
/// ```
/// use loader_core::{DataLoader, IterableDataset};
/// use loader_data::{DecodedRecords, FieldOptions, ImageColumn, TarShards, Transform};
///
/// # std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar"))?;
/// let shards = TarShards::open("photos.tar")?.fields(FieldOptions::new().select(["jpg", "cls"]));
/// let column = ImageColumn::f32(Transform::standard_train(64))?;
/// let images = DecodedRecords::new(shards.shuffle_buffer(100), [("jpg", column)]);
/// let batch = DataLoader::stream(images).batch_size(4).build()?.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<f32>("jpg")?.shape(), [4, 3, 64, 64]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DecodedRecords<D> {
    dataset: D,
    decoders: Vec<(String, FieldDecoder)>,
    /// Fields: records in which one of them is null are left out. Empty for a map-style dataset.
    drop_nulls: Vec<String>,
}

impl<D> DecodedRecords<D> {
    /// Decodes fields of the records of `dataset`. `decoders` are pairs of a field's name and its decoder: an
    /// [`ImageColumn`](crate::ImageColumn), an [`AudioTransform`](crate::AudioTransform) or a
    /// [`FieldDecoder`].
    pub fn new<N: Into<String>, F: Into<FieldDecoder>>(
        dataset: D,
        decoders: impl IntoIterator<Item = (N, F)>,
    ) -> Self {
        let decoders = decoders.into_iter().map(|(name, decoder)| (name.into(), decoder.into())).collect();
        Self { dataset, decoders, drop_nulls: Vec::new() }
    }

    /// Returns the inner dataset. If this dataset neither decodes nor checks a field, its records go to collation unchanged, so it may
    /// return records that refer to rows of decoded columns.
    fn inner(&self, cx: &mut SampleContext) -> &D
    where
        D: 'static,
    {
        if self.decoders.is_empty() && self.drop_nulls.is_empty() {
            cx.pass_collated::<Self, D>();
        }
        &self.dataset
    }

    /// Decodes the fields of `record`.
    fn decode(&self, mut record: Record, rng: &mut ChaCha8Rng) -> Result<Record> {
        for (name, decoder) in &self.decoders {
            decoder.decode(&mut record, name, rng)?;
        }
        Ok(record)
    }

    /// Decodes the fields of record `index` of a map-style dataset.
    fn decode_at(&self, index: usize, record: Record, rng: &mut ChaCha8Rng) -> Result<Record> {
        self.decode(record, rng).map_err(|error| error.at(Position::Row(index as u64)))
    }

    fn validate(&self) -> Result<()> {
        self.decoders.iter().try_for_each(|(name, decoder)| {
            let failed = |problem| DataError::new(format!("{} `{name}`", decoder.kind()), problem);
            decoder.validate().map_err(failed)
        })
    }

    /// Adds the tokenizers to the fingerprint of the inner dataset: windows of other tokens are other samples. Adds the
    /// fields of `drop_nulls`.
    /// The other decoders change neither the number nor the order of samples.
    fn fingerprint_with(&self, mut inner: String) -> String {
        for (name, decoder) in &self.decoders {
            if let Some(decoder) = decoder.fingerprint() {
                inner += &format!(", `{name}` {decoder}");
            }
        }
        if !self.drop_nulls.is_empty() {
            inner += &format!(", without nulls in {:?}", BTreeSet::from_iter(&self.drop_nulls));
        }
        inner
    }

    /// Draws the seed of the samples of a shard. Draws nothing without decoders.
    fn seed(&self, cx: &mut SampleContext) -> [u8; 32] {
        let mut seed = [0; 32];
        if !self.decoders.is_empty() {
            cx.rng().fill_bytes(&mut seed);
        }
        seed
    }
}

impl<D: Dataset<Sample = Record>> Dataset for DecodedRecords<D> {
    type Sample = Record;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        let record = self.inner(cx).get(index, cx)?;
        // The inner dataset may have drawn random numbers, so the generator starts again, as in `get_many`.
        Ok(cx.with_restarted_rng(|cx| self.decode_at(index, record, cx.rng()))?)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        let records = self.inner(cx).get_many(indices, cx)?;
        if self.decoders.is_empty() {
            return Ok(records);
        }
        let decode = |(record, &index): (Record, &usize)| {
            cx.set_index(index);
            Ok(self.decode_at(index, record, cx.rng())?)
        };
        records.into_iter().zip(indices).map(decode).collect()
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.validate()?;
        self.dataset.setup(cx)
    }

    /// Returns the fingerprint of the inner dataset, with the tokenizers.
    fn fingerprint(&self) -> String {
        self.fingerprint_with(self.dataset.fingerprint())
    }

    fn layers(&self) -> u8 {
        self.dataset.layers()
    }
}

impl<D: IterableDataset<Sample = Record>> DecodedRecords<D> {
    /// Leaves out the records in which one of the fields `names` is null. A record without one of the fields is an error.
    /// A null that `fill` has replaced does not count. The stream's number of samples is then unknown.
    ///
    /// Only streams have this method. A map-style dataset must know its number of samples and find each by its index.
    ///
    /// Alternative considered: a map-style dataset that reads the fields of all records when it is opened, and keeps a list
    /// of those without nulls. Rejected because each start would read whole columns of all files, and for CSV and JSON
    /// lines all of them, before the first batch. A program that wants this can give such a list to
    /// [`Subset`](loader_core::Subset).
    ///
    /// # Examples
    /// ```
    /// use loader_core::DataLoader;
    /// use loader_data::{DecodedRecords, FieldDecoder, JsonLinesStream};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("rows.jsonl");
    /// std::fs::write(&path, "{\"age\": 30}\n{\"age\": null}\n{\"age\": 50}\n")?;
    /// let rows = DecodedRecords::new(JsonLinesStream::open(&path)?, <[(String, FieldDecoder); 0]>::default());
    /// let loader = DataLoader::stream(rows.drop_nulls(["age"])).batch_size(2).build()?;
    /// let batch = loader.iter()?.next().unwrap()?;
    /// assert_eq!(batch.tensor::<i64>("age")?.as_slice(), [30, 50]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn drop_nulls<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.drop_nulls = names.into_iter().map(Into::into).collect();
        self
    }
}

impl<D> DecodedRecords<D> {
    /// True if `record` is left out.
    fn is_dropped(&self, record: &Record) -> Result<bool> {
        for name in &self.drop_nulls {
            match record.get(name) {
                Some(Value::Null) => return Ok(true),
                Some(_) => {}
                None => {
                    let names = record.iter().map(|(name, _)| name);
                    return Err(DataError::new(
                        "option `drop_nulls`",
                        DataProblem::missing_field(name, names),
                    ));
                }
            }
        }
        Ok(false)
    }
}

impl<D: IterableDataset<Sample = Record>> IterableDataset for DecodedRecords<D> {
    type Sample = Record;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Record>> + Send> {
        let seed = self.seed(cx);
        Ok(DecodedShard { dataset: self, records: self.inner(cx).iter(shard, cx)?, seed, position: 0 })
    }

    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<Record>> + Send>> {
        // The number of records that were left out before `position` is not known.
        if !self.drop_nulls.is_empty() {
            return Ok(None);
        }
        let seed = self.seed(cx);
        let records = self.inner(cx).iter_at(shard, position, cx)?;
        Ok(records.map(|records| DecodedShard { dataset: self, records, seed, position }))
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len().filter(|_| self.drop_nulls.is_empty())
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.validate()?;
        self.dataset.setup(cx)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint_with(self.dataset.fingerprint())
    }

    fn layers(&self) -> u8 {
        self.dataset.layers()
    }
}

impl<D: SnapshotDataset<Sample = Record>> SnapshotDataset for DecodedRecords<D> {
    /// Number of records that were read, and the snapshot of the inner dataset.
    type Snapshot = (u64, D::Snapshot);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<Record>, Snapshot = Self::Snapshot> + Send>
    {
        let seed = self.seed(cx);
        let (position, snapshot) = snapshot.map_or((0, None), |(position, inner)| (position, Some(inner)));
        let records = self.inner(cx).iter_from(shard, cx, snapshot)?;
        Ok(DecodedShard { dataset: self, records, seed, position })
    }
}

/// The records of a shard, with their fields decoded.
struct DecodedShard<'a, D, I> {
    dataset: &'a DecodedRecords<D>,
    records: I,
    /// Seed of the random numbers of the samples.
    seed: [u8; 32],
    /// Number of records that were read.
    position: u64,
}

impl<D, I: Iterator<Item = anyhow::Result<Record>>> Iterator for DecodedShard<'_, D, I> {
    type Item = anyhow::Result<Record>;

    fn next(&mut self) -> Option<anyhow::Result<Record>> {
        loop {
            let record = self.records.next()?;
            let index = self.position;
            self.position += 1;
            // Each record has random numbers of its own, so that they are the same after a resume.
            let mut rng = ChaCha8Rng::from_seed(self.seed);
            rng.set_stream(index);
            let mut decode = |record| Ok(self.dataset.decode(record, &mut rng)?);
            if self.dataset.drop_nulls.is_empty() {
                return Some(record.and_then(decode));
            }
            match record.and_then(|record| Ok((!self.dataset.is_dropped(&record)?).then_some(record))) {
                Ok(Some(record)) => return Some(decode(record)),
                Ok(None) => {}
                // A later read without this error might leave the record out, which would move the records after it.
                Err(error) => return Some(Err(OutOfPlace::mark(error, index))),
            }
        }
    }
}

impl<D, I: SnapshotIterator<Item = anyhow::Result<Record>>> SnapshotIterator for DecodedShard<'_, D, I> {
    type Snapshot = (u64, I::Snapshot);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.position, self.records.snapshot()?))
    }
}
