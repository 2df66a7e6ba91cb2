//! The dataset [`TarShards`].

use std::{marker::PhantomData, path::Path};

use derive_where::derive_where;
use loader_core::{IterableDataset, SampleContext, Shard, SnapshotDataset, SnapshotIterator};
use rand::Rng;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    IndexedTar, MAX_SAMPLE_BYTES, TarOptions,
    decoding::Decoding,
    members::End,
    stream::{Stream, TarPosition},
};
use crate::{
    error::DataError,
    index::IndexPlace,
    record::{FieldOptions, Record},
    shard_items::ShardItems,
    source::Files,
};

/// Samples from tar archives in WebDataset's layout, read from the beginning to the end. A sample is a
/// [`Record`], or a type of your own that implements `Deserialize`, see [`rows`](Self::rows).
///
/// # Which members form a sample
/// The rules are those of webdataset 1.0. The name of a member is split at the first dot after the last
/// slash: what is before, with the folder, is the key of the sample; what is after, in lower case, is the
/// field. So `train/0001.seg.PNG` is the field `seg.png` of the sample `train/0001`. Members with the same
/// key that follow each other are one sample; samples do not continue in the next file. A record has the
/// fields `__key__` and `__url__` (the path of the file), and then those of the members in their order.
/// Folders, links, members without a dot in their name and members whose first folder or name is like
/// `__this__` are skipped.
///
/// # What the fields are
/// The extension, which is what follows the last dot, decides, as in webdataset's `decode()`: `txt`, `text`
/// and `transcript` are texts (UTF-8); `cls`, `cls2`, `index`, `inx` and `id` are integers (`i64`); `json`
/// and `jsn` are values of any kind. Other members are bytes, and with [`decode(false)`](Self::decode) all
/// are. [`decode_images`](Self::decode_images) decodes `jpg`, `jpeg` and `png`. If [`fields`](Self::fields)
/// selects some fields, the data of other members is not read.
///
/// # Which files it reads
/// Archives in the formats ustar, GNU and PAX, not compressed or compressed with gzip or Zstandard; the
/// content decides, not the name. Names that are not Unicode get U+FFFD for their invalid bytes. Names are
/// never used as paths.
///
/// # Shards
/// File `i` belongs to shard `i % n` of `n`. Shards without a file are empty, so give at most as many shards
/// as there are files, and about equally large files. [`shuffle_files`](Self::shuffle_files) permutes the
/// files first. To shuffle samples, add [`shuffle_buffer`](IterableDataset::shuffle_buffer), and decode
/// images after it: the buffer then holds compressed images.
///
/// # Resuming
/// With [`snapshots`](loader_core::Builder::snapshots), a resumed shard continues at the offset of the next
/// sample. A compressed file is decompressed from its beginning to there. Without snapshots, a resumed shard
/// is read from its beginning.
///
/// # Errors
/// A [`DataError`] names the file and the member, or the offset in the (decompressed) archive. If a member
/// cannot be decoded, or a sample has a field twice or more than
/// [`max_sample_bytes`](Self::max_sample_bytes), that sample fails. If the archive is damaged, cut off or
/// cannot be read, or if no file can be read for now, the shard ends, see
/// [`EndsShard`](loader_core::EndsShard). The end of an archive is a block of zeros; if it is missing, the archive
/// may have been cut off, and the shard ends too, see [`allow_missing_end`](Self::allow_missing_end). An archive
/// with a member that is a sparse file cannot be read further.
///
/// # Examples
/// ```
/// use loader_core::{DataLoader, IterableDataset};
/// use loader_data::{FieldOptions, TarShards};
///
/// # let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar");
/// # std::env::set_current_dir(fixtures)?;
/// let shards = TarShards::open("shard-{0..2}.tar")?.fields(FieldOptions::new().select(["__key__", "cls"]));
/// let loader = DataLoader::stream(shards.shuffle_files(true).shuffle_buffer(100)).batch_size(8).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<i64>("cls")?.shape(), [8]);
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct TarShards<R = Record> {
    pub(super) files: Files,
    pub(super) decoding: Decoding,
    pub(super) end: End,
    pub(super) max_sample_bytes: u64,
    pub(super) index: IndexPlace,
    shuffle_files: bool,
    row: PhantomData<fn() -> R>,
}

impl TarShards<Record> {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and in its sub-folders
    /// whose names end with `.tar`, `.tar.gz`, `.tgz` or `.tar.zst`, ordered by path), or a name with braces
    /// and wildcards, such as `train-{000000..000255}.tar`. Lists the files and reads none of them.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, or one is not a regular file.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        TarOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        TarOptions::new_all(patterns).open()
    }

    pub(super) fn new(files: Files, decoding: Decoding) -> Self {
        Self {
            files,
            decoding,
            end: End::Marker,
            max_sample_bytes: MAX_SAMPLE_BYTES,
            index: IndexPlace::Cache,
            shuffle_files: false,
            row: PhantomData,
        }
    }
}

impl<R> TarShards<R> {
    /// Returns the fields of a sample if they are selected.
    #[cfg(feature = "formats")]
    pub(crate) fn field_names(&self) -> Option<Vec<String>> {
        self.decoding.fields.selected().map(<[String]>::to_vec)
    }

    /// Returns rows of type `T`. A field of the row gets the field of the sample with its name; use serde's
    /// `rename` for names such as `seg.png`. Fields of the sample that the row does not have are ignored.
    ///
    /// A `Vec<u8>` in the row takes time for each byte. For large members use `serde_bytes::ByteBuf` of the
    /// crate `serde_bytes`, or the [`Record`], from which [`remove`](Record::remove) moves them.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{DataLoader, IterableDataset, Tensor};
    /// use loader_data::{TarShards, Transform};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Row {
    ///     #[serde(rename = "jpg")]
    ///     image: Tensor<f32>,
    ///     cls: u32,
    /// }
    ///
    /// # let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tar");
    /// # std::env::set_current_dir(fixtures)?;
    /// let shards = TarShards::open("photos.tar")?.decode_images(Transform::standard_train(64))?;
    /// let samples = shards.rows::<Row>().map(|row, _cx| Ok((row.image, row.cls)));
    /// let (images, labels) = DataLoader::stream(samples).batch_size(4).build()?.iter()?.next().unwrap()?;
    /// assert_eq!(images.shape(), [4, 3, 64, 64]);
    /// assert_eq!(labels.as_slice(), [0, 1, 2, 3]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> TarShards<T> {
        let Self { files, decoding, end, max_sample_bytes, index, shuffle_files, row: _ } = self;
        TarShards { files, decoding, end, max_sample_bytes, index, shuffle_files, row: PhantomData }
    }

    /// Sets which fields a sample has, and the dtypes of its numbers.
    #[must_use]
    pub fn fields(mut self, fields: FieldOptions) -> Self {
        self.decoding.fields = fields;
        self
    }

    /// Renames a field to `name`: the first of `fields` that the sample has. Use it for samples with the same
    /// thing in different formats, as `"jpg;png"` in webdataset: `.rename("image", ["jpg", "png"])`. A sample
    /// that has none of them has no field `name`. The extension of the old name decides how the field is
    /// decoded.
    #[must_use]
    pub fn rename<F: Into<String>>(
        mut self,
        name: impl Into<String>,
        fields: impl IntoIterator<Item = F>,
    ) -> Self {
        self.decoding.renamed.push((name.into(), fields.into_iter().map(Into::into).collect()));
        self
    }

    /// Sets whether members are decoded by their extension, which is the default. Otherwise they are bytes,
    /// except images with [`decode_images`](Self::decode_images).
    #[must_use]
    pub fn decode(mut self, by_extension: bool) -> Self {
        self.decoding.by_extension = by_extension;
        self
    }

    /// Sets whether each epoch reads the files in another order. The order depends only on the loader's seed
    /// and the epoch, and is dealt to the shards. By default the files are read in the order in which they
    /// were given.
    #[must_use]
    pub fn shuffle_files(mut self, shuffle: bool) -> Self {
        self.shuffle_files = shuffle;
        self
    }

    /// Sets the maximum number of bytes of the members of a sample together. The default is 1 GiB. A larger
    /// sample fails before it is read.
    #[must_use]
    pub fn max_sample_bytes(mut self, bytes: u64) -> Self {
        self.max_sample_bytes = bytes;
        self
    }

    /// Sets whether an archive may end without the block of zeros that ends an archive. By default this is an
    /// error.
    #[must_use]
    pub fn allow_missing_end(mut self, allow: bool) -> Self {
        self.end = if allow { End::Any } else { End::Marker };
        self
    }

    /// Sets where [`indexed`](Self::indexed) stores the index; by default in the user's cache folder.
    #[must_use]
    pub fn index(mut self, place: IndexPlace) -> Self {
        self.index = place;
        self
    }

    /// Makes an index of the samples for random access, or loads a stored one. The order of the files is then
    /// that in which they were given; shuffle the samples instead.
    ///
    /// # Errors
    /// Returns [`DataError`] if a file cannot be read, is damaged, or is compressed.
    pub fn indexed(self) -> Result<IndexedTar<R>, DataError>
    where
        R: DeserializeOwned + Send + 'static,
    {
        IndexedTar::new(self)
    }

    /// Returns the numbers of the files that `shard` reads, in order.
    fn files_of(&self, shard: Shard, cx: &SampleContext) -> Vec<usize> {
        let mut files: Vec<usize> = (0..self.files.len()).collect();
        if self.shuffle_files {
            // Not rand's shuffle: the order must not change between its releases.
            let mut rng = cx.epoch_rng();
            files.sort_by_cached_key(|_| rng.next_u64());
        }
        shard.of(files).collect()
    }
}

impl<R: DeserializeOwned + Send + 'static> IterableDataset for TarShards<R> {
    type Sample = R;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<R>> + Send> {
        self.iter_from(shard, cx, None)
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions, and the
    /// options.
    fn fingerprint(&self) -> String {
        let shuffled = if self.shuffle_files { ", shuffled" } else { "" };
        format!("tar({}{}{shuffled})", self.files.fingerprint(), self.decoding.fingerprint())
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        Ok(self.decoding.validate()?)
    }
}

impl<R: DeserializeOwned + Send + 'static> SnapshotDataset for TarShards<R> {
    type Snapshot = TarPosition;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<TarPosition>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<R>, Snapshot = TarPosition> + Send> {
        let mut seed = [0; 32];
        cx.rng().fill_bytes(&mut seed);
        let files = self.files_of(shard, cx);
        let samples = Stream::new(self, files, seed, cx.memory().clone(), snapshot.unwrap_or_default());
        Ok(ShardItems::new(samples))
    }
}
