//! The digest of the samples of an epoch. It is the sum of one hash per sample, so that the digests of the
//! parts of an epoch can be added in any order.
//!
//! Alternatives considered:
//! - Xor in place of addition. Rejected because a sample that is loaded twice would cancel itself.
//! - Hashing batches. Rejected because batches differ with the batch size, and with the share of a rank.
//! - A bound on all samples, such as `Serialize`. Rejected because a sample that a function collates may have
//!   any type, such as an image decoder. Samples with a default collation implement
//!   [`Sample::hash_content`](crate::Sample::hash_content); for the others, [`Builder::digest_with`] takes a
//!   function.
//! - Hashing the row that the sample becomes in its batch. Rejected because padding and dtypes of that row
//!   may depend on the other samples of the batch.
//! - A sum in each worker. Rejected because a worker may die after main has returned some of its batches, and
//!   because two workers may load one batch. Instead the hashes travel with the batch, so that only batches
//!   that main returns count.
//!
//! [`Builder::digest_with`]: crate::Builder::digest_with

use std::{
    fmt,
    io::{self, Write},
    iter::Sum,
    ops::{Add, AddAssign},
};

use loader_ipc::codec;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use xxhash_rust::xxh3::Xxh3;

use crate::data::tensor::DType;

/// The digest of a set of samples, for example of an epoch: a number of 128 bits, and the number of samples.
///
/// With the option [`digest`](crate::Builder::digest), [`EpochReport::digest`](crate::EpochReport::digest) is
/// the digest of the epoch so far, and [`BatchInfo::digest`](crate::BatchInfo::digest) is the digest of one
/// batch.
///
/// The digest depends on the number of the epoch, and on the index and content of each sample before
/// collation. It does not depend on the number of workers, the batch size, or the order. The sum (`+`) of the
/// digests of the parts of an epoch, such as the shares of ranks or the parts before and after a resume, is
/// the digest of the epoch.
///
/// The number is the wrapping sum of one xxh3 hash per sample: it detects mistakes, not forgery. `Display`
/// writes it as 32 hexadecimal digits.
///
/// # Examples
/// ```
/// use loader_core::{SampleDigest, prelude::*};
///
/// let loader = || {
///     let numbers = TensorDataset::new(Tensor::from_vec((0..10i64).collect(), [10])?)?;
///     anyhow::Ok(DataLoader::builder(numbers).digest(true))
/// };
/// let digest = |loader: DataLoader<Tensor<i64>>| {
///     let mut batches = loader.iter()?;
///     batches.by_ref().try_for_each(|batch| batch.map(drop))?;
///     anyhow::Ok(batches.report().digest.unwrap())
/// };
/// let whole = digest(loader()?.batch_size(4).build()?)?;
/// let shares = (0..3).map(|rank| digest(loader()?.shuffle(true).distributed(rank, 3).build()?));
/// assert_eq!(shares.sum::<Result<SampleDigest, _>>()?, whole);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SampleDigest {
    #[serde(serialize_with = "write_hex", deserialize_with = "read_hex")]
    sum: u128,
    samples: u64,
}

impl SampleDigest {
    /// Returns the digest of the samples with these hashes.
    pub(crate) fn of(hashes: &[u128]) -> Self {
        let sum = hashes.iter().fold(0, |sum: u128, &hash| sum.wrapping_add(hash));
        Self { sum, samples: hashes.len() as u64 }
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

impl Add for SampleDigest {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let samples = self.samples.wrapping_add(other.samples);
        Self { sum: self.sum.wrapping_add(other.sum), samples }
    }
}

impl AddAssign for SampleDigest {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for SampleDigest {
    fn sum<I: Iterator<Item = Self>>(digests: I) -> Self {
        digests.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for SampleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}

// Written as text, because some formats have no integers of 128 bits.
fn write_hex<S: Serializer>(sum: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{sum:032x}"))
}

fn read_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
    u128::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
}

/// Hashes the content of one sample, for the [`SampleDigest`]. An implementation of
/// [`Sample::hash_content`](crate::Sample::hash_content), or the function given to
/// [`digest_with`](crate::Builder::digest_with), adds all values by which two samples may differ.
#[derive(Clone)]
pub struct ContentHash {
    hash: Xxh3,
    /// Why a value was not added.
    error: Option<String>,
}

/// Identifies a sample. For an iterable dataset, `shard` is the number of the shard among those of all ranks,
/// and `index` is the position in the shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleKey {
    pub(crate) epoch: u64,
    pub(crate) shard: Option<usize>,
    pub(crate) index: u64,
}

impl ContentHash {
    pub(crate) fn new(key: SampleKey) -> Self {
        let SampleKey { epoch, shard, index } = key;
        let mut hash = Self::empty();
        for part in [epoch, shard.map_or(u64::MAX, |shard| shard as u64), index] {
            hash.hash.update(&part.to_le_bytes());
        }
        hash
    }

    fn empty() -> Self {
        Self { hash: Xxh3::new(), error: None }
    }

    /// Returns the hash.
    ///
    /// # Errors
    /// The error of the first value that could not be added.
    pub(crate) fn finish(self) -> anyhow::Result<u128> {
        match self.error {
            Some(error) => Err(anyhow::Error::msg(error).context("computing the digest of a sample")),
            None => Ok(self.hash.digest128()),
        }
    }

    /// Adds the number of the bytes, and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.hash.update(&(bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    /// Adds a tensor: its dtype, its shape, and the bytes of its elements.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) {
        self.bytes(dtype.name().as_bytes());
        self.hash.update(&(shape.len() as u64).to_le_bytes());
        shape.iter().for_each(|&len| self.hash.update(&(len as u64).to_le_bytes()));
        self.bytes(bytes);
    }

    /// Adds any serde value. The entries of a `HashMap` have no fixed order, so the digest of a value with
    /// one differs between runs: use a `BTreeMap`.
    ///
    /// If the value's `Serialize` fails, or writes a sequence or map of unknown length (as
    /// `#[serde(flatten)]` does), the sample fails with this error.
    pub fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Writing to a hash cannot fail, so this is an error of the value's `Serialize`.
        if let Err(error) = codec::encode_into(HashWriter(&mut self.hash), value) {
            self.error.get_or_insert_with(|| error.to_string());
        }
    }

    /// Adds parts that have no fixed order, such as the entries of a map.
    pub(crate) fn unordered<P>(&mut self, parts: impl Iterator<Item = P>, add: impl Fn(P, &mut Self)) {
        let mut hashes = Vec::new();
        for part in parts {
            let mut hash = Self::empty();
            add(part, &mut hash);
            hashes.push(hash.hash.digest128());
            self.error = self.error.take().or(hash.error);
        }
        let SampleDigest { sum, samples } = SampleDigest::of(&hashes);
        self.hash.update(&samples.to_le_bytes());
        self.hash.update(&sum.to_le_bytes());
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({:032x})", self.hash.digest128())
    }
}

/// Collects the hash of each sample of a batch.
pub(crate) trait Hashes {
    /// Adds a sample.
    ///
    /// # Errors
    /// Returns an error if a value of the sample cannot be added to its hash.
    fn add(&mut self, key: SampleKey, content: impl FnOnce(&mut ContentHash)) -> anyhow::Result<()>;
}

impl Hashes for Vec<u128> {
    fn add(&mut self, key: SampleKey, content: impl FnOnce(&mut ContentHash)) -> anyhow::Result<()> {
        let mut hash = ContentHash::new(key);
        content(&mut hash);
        self.push(hash.finish()?);
        Ok(())
    }
}

/// The [`Hashes`] of a loader without the option `digest`. It is a separate type, so that such a loader does
/// not check the option for each sample.
pub(crate) struct NoHashes;

impl Hashes for NoHashes {
    #[inline(always)]
    fn add(&mut self, _key: SampleKey, _content: impl FnOnce(&mut ContentHash)) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Hashes what is written to it.
pub(crate) struct HashWriter<'a>(pub(crate) &'a mut Xxh3);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Builder, DataLoader, Dataset, Error, Iter, IterableDataset, OnBadSample, Sample, SampleContext,
        Shard, Tensor,
        data::collate::{Batch, Collate, Keep, List, Ragged},
        kind::{Iterable, MapStyle, Plain},
    };

    fn hash<S: Sample>(sample: &S) -> u128 {
        let mut hashes = Vec::new();
        let key = SampleKey { epoch: 0, shard: None, index: 0 };
        hashes.add(key, |hash| sample.hash_content(hash)).unwrap();
        hashes[0]
    }

    #[test]
    fn the_content_of_a_sample_decides_its_hash() {
        let map = |keys: [&str; 3]| keys.map(|key| (key.to_owned(), key.len() as u8)).into_iter().collect();
        let maps: [HashMap<String, u8>; 2] = [map(["a", "bc", "def"]), map(["def", "a", "bc"])];
        assert_eq!(hash(&maps[0]), hash(&maps[1]));
        assert_eq!(hash(&vec![1u8, 2]), hash(&Tensor::from_slice(&[1u8, 2], [2]).unwrap()));
        let different = [
            hash(&[[1u8, 2]]),
            hash(&[1u8, 2]),
            hash(&[1i8, 2]),
            hash(&(1u8, 2u8)),
            hash(&List(vec![1u8, 2])),
            hash(&(List(vec![1u8]), List(vec![2u8]))),
            hash(&("ab", "c")),
            hash(&("a", "bc")),
            hash(&Keep("abc".to_owned())),
            hash(&Some(1u8)),
            hash(&None::<u8>),
            hash(&Ragged::new(vec![1u8, 2])),
            hash(&Ragged::new(vec![1u8, 2]).pad_with(3)),
            hash(&maps[0]),
            hash(&()),
        ];
        for (position, hash) in different.iter().enumerate() {
            assert!(!different[..position].contains(hash), "number {position} equals another one");
        }
    }

    #[test]
    fn a_digest_survives_text_and_binary_formats() {
        let digest = SampleDigest::of(&[u128::MAX, 3, 8]);
        assert_eq!((digest.to_string(), digest.samples()), (format!("{:032x}", 10), 3));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, r#"{"sum":"0000000000000000000000000000000a","samples":3}"#);
        assert_eq!(serde_json::from_str::<SampleDigest>(&json).unwrap(), digest);
        let bytes = codec::encode(&digest).unwrap();
        assert_eq!(codec::decode::<SampleDigest>(&bytes).unwrap(), digest);
        assert!(serde_json::from_str::<SampleDigest>(r#"{"sum":"x","samples":3}"#).is_err());
    }

    proptest! {
        #[test]
        fn the_parts_of_an_epoch_in_any_order_add_up_to_the_epoch(
            parts in prop::collection::vec((0usize..4, 0u64..1 << 40), 1..60),
            (lost, doubled) in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let mut hashes = Vec::new();
            for (index, (_, content)) in parts.iter().enumerate() {
                let key = SampleKey { epoch: 3, shard: None, index: index as u64 };
                hashes.add(key, |hash| content.hash_content(hash)).unwrap();
            }
            let whole = SampleDigest::of(&hashes);
            let part = |number| -> SampleDigest {
                let samples = parts.iter().zip(&hashes).rev().filter(|((part, _), _)| *part == number);
                SampleDigest::of(&samples.map(|(_, &hash)| hash).collect::<Vec<_>>())
            };
            prop_assert_eq!((0..4).map(part).sum::<SampleDigest>(), whole);
            // A doubled sample changes the digest, even if another sample is missing.
            let (lost, doubled) = (lost.index(hashes.len()), doubled.index(hashes.len()));
            let twice = whole + SampleDigest::of(&[hashes[doubled]]);
            prop_assert_ne!(twice.sum, whole.sum);
            prop_assert_ne!((twice + SampleDigest::of(&[hashes[doubled]])).sum, whole.sum);
            if lost != doubled {
                hashes[lost] = hashes[doubled];
                prop_assert_ne!(SampleDigest::of(&hashes), whole);
            }
        }

        #[test]
        fn an_epoch_has_one_digest(
            (samples, world_size, batch_size, other_batch_size) in (1usize..40, 1usize..6, 1usize..9, 1usize..9),
            (shuffle, seed, epoch) in any::<(bool, u64, u8)>(),
            stop in 0usize..20,
        ) {
            let loader = |batch_size| DataLoader::builder(Numbers(samples)).batch_size(batch_size).digest(true);
            let epoch = u64::from(epoch);
            let whole = digest(loader(other_batch_size), epoch);
            prop_assert_eq!(whole.samples(), samples as u64);
            let mut union = SampleDigest::default();
            for rank in 0..world_size {
                let share = || loader(batch_size).shuffle(shuffle).seed(seed).distributed(rank, world_size);
                let (first, resumed) = (share().build().unwrap(), share().build().unwrap());
                let mut batches = first.epoch(epoch).unwrap();
                batches.by_ref().take(stop).for_each(|batch| drop(batch.unwrap()));
                let state = batches.state();
                if state.epoch() == epoch {
                    prop_assert_eq!(state.digest().unwrap_or_default(), batches.report().digest.unwrap());
                    batches = resumed.resume(&state).unwrap();
                    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
                }
                union += batches.report().digest.unwrap();
            }
            prop_assert_eq!(union, whole);
            prop_assert_ne!(digest(loader(batch_size), epoch + 1), whole);
        }

        #[test]
        fn a_stream_with_equally_many_shards_has_one_digest(
            (items, shards, world_size) in (0usize..40, 1usize..4, 1usize..4),
            (batch_size, other_batch_size) in (1usize..9, 1usize..9),
        ) {
            let stream = |shards| DataLoader::stream(Numbers(items)).shards(shards).digest(true);
            let whole = digest_stream(stream(shards * world_size).batch_size(other_batch_size));
            prop_assert_eq!(whole.samples(), items as u64);
            let share = |rank| stream(shards).batch_size(batch_size).distributed(rank, world_size);
            prop_assert_eq!((0..world_size).map(|rank| digest_stream(share(rank))).sum::<SampleDigest>(), whole);
        }
    }

    #[test]
    fn a_sample_that_is_left_out_is_not_in_the_digest() {
        let numbers = |bad| {
            Dataset::map_with(Numbers(10), bad, |&bad, number, _| {
                anyhow::ensure!(number != bad, "a bad number");
                Ok(number)
            })
        };
        let loader = |bad, on_bad_sample| {
            let loader = DataLoader::builder(numbers(bad)).batch_size(4).digest(true);
            digest(loader.on_bad_sample(on_bad_sample), 0)
        };
        let whole = loader(10, OnBadSample::Error);
        let mut bad = Vec::new();
        bad.add(SampleKey { epoch: 0, shard: None, index: 9 }, |hash| 9u64.hash_content(hash)).unwrap();
        assert_eq!(loader(9, OnBadSample::Skip) + SampleDigest::of(&bad), whole);
        // The sample that replaces it counts twice.
        let replaced = loader(9, OnBadSample::Replace);
        assert_eq!(replaced.samples(), 10);
        assert_ne!(replaced, whole);
        // The bad sample is the one that both ranks load.
        let share = |rank| DataLoader::builder(numbers(0)).digest(true).distributed(rank, 3);
        let shares = (0..3).map(|rank| digest(share(rank).on_bad_sample(OnBadSample::Skip), 0));
        assert_eq!(shares.sum::<SampleDigest>(), loader(0, OnBadSample::Skip));
    }

    #[test]
    fn samples_that_a_function_collates_need_digest_with_and_items_do_not() {
        let loader =
            || DataLoader::builder(Numbers(10)).collate(|numbers| Ok(numbers.len() as u64)).digest(true);
        let error = loader().build().unwrap_err();
        assert!(matches!(error, Error::InvalidOption { option: "digest", .. }), "{error}");
        let with = || loader().digest_with(|number, hash| number.hash_content(hash));
        let whole = digest(DataLoader::builder(Numbers(10)).digest(true), 0);
        assert_eq!(digest(with().batch_size(3), 0), whole);
        let items = || DataLoader::builder(Numbers(10)).unbatched().digest(true);
        let shares = (0..3).map(|rank| digest(items().distributed(rank, 3), 0));
        assert_eq!(shares.sum::<SampleDigest>(), digest(items(), 0));
        let of_items = digest(items().digest_with(|_, hash| hash.bytes(b"same")), 0);
        let mut same = Vec::new();
        for index in 0..10 {
            same.add(SampleKey { epoch: 0, shard: None, index }, |hash| hash.bytes(b"same")).unwrap();
        }
        assert_eq!(of_items, SampleDigest::of(&same));
        let report = with().digest(false).build().unwrap().iter().unwrap().report();
        assert_eq!(report.digest, None);
    }

    #[test]
    fn a_value_that_cannot_be_encoded_fails_its_sample() {
        #[derive(Serialize)]
        struct Flat {
            #[serde(flatten)]
            rest: HashMap<String, u8>,
        }

        let loader = DataLoader::builder(Numbers(4)).digest(true);
        let loader = loader.digest_with(|_, hash| {
            hash.unordered([0, 1].iter(), |_, hash| hash.value(&Flat { rest: HashMap::new() }))
        });
        let error = loader.build().unwrap().iter().unwrap().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("computing the digest of a sample"), "{error}");
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Numbers(usize);

    impl Dataset for Numbers {
        type Sample = u64;

        fn len(&self) -> usize {
            self.0
        }

        fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
            Ok(index as u64)
        }
    }

    impl IterableDataset for Numbers {
        type Sample = u64;

        fn iter(
            &self,
            shard: Shard,
            _cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>>> {
            Ok(shard.of(0..self.0 as u64).map(Ok))
        }
    }

    fn digest<D: Dataset, C: Collate<D::Sample>>(
        loader: Builder<MapStyle<D>, C>,
        epoch: u64,
    ) -> SampleDigest {
        rest(loader.build().unwrap().epoch(epoch).unwrap())
    }

    fn digest_stream(loader: Builder<Iterable<Plain<Numbers>>>) -> SampleDigest {
        rest(loader.build().unwrap().iter().unwrap())
    }

    /// Returns the digest of the batches that `batches` has not returned yet.
    fn rest<B: Batch>(mut batches: Iter<B>) -> SampleDigest {
        let mut sum = SampleDigest::default();
        while let Some(batch) = batches.next() {
            // A rank may have no samples.
            if matches!(batch, Err(Error::NoShare { .. })) {
                continue;
            }
            batch.unwrap();
            sum += batches.last_batch().unwrap().digest.unwrap();
        }
        assert_eq!(batches.report().samples, sum.samples() + batches.report().repeated);
        sum
    }
}
