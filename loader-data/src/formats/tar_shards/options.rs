//! Options of tar shards.

use std::collections::BTreeMap;

use super::{EXTENSIONS, IndexedTar, MAX_SAMPLE_BYTES, TarShards, decoding::Decoding, indexed};
use crate::{
    error::DataError,
    index::{IndexPlace, StoredIndex},
    options::format_options,
    record::{FieldOptions, Record},
};

format_options! {
    /// What to read as tar shards, for example from a config file. The options are those of [`TarShards`].
    ///
    /// # Examples
    /// ```
    /// use loader_data::TarOptions;
    ///
    /// let text = r#"{
    ///     "path": "train-{000..002}.tar",
    ///     "rename": {"image": ["jpg", "png"]},
    ///     "fields": ["image", "cls"],
    ///     "shuffle_files": true
    /// }"#;
    /// let options: TarOptions = serde_json::from_str(text)?;
    /// assert_eq!(options.open().unwrap_err().to_string(), "`train-000.tar`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct TarOptions {
        /// Sets which fields a sample has, and the dtypes of its numbers.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets the new names of fields, and for each the fields of which the first that exists gets it, see
        /// [`TarShards::rename`].
        rename: BTreeMap<String, Vec<String>> = BTreeMap::new(),
        /// Sets whether members are decoded by their extension, see [`TarShards::decode`]. The default is
        /// true.
        decode: bool = true,
        /// Sets where the index for random access is stored; by default in the user's cache folder.
        index: IndexPlace = IndexPlace::Cache,
        /// Sets whether each epoch reads the files in another order, see [`TarShards::shuffle_files`].
        shuffle_files: bool = false,
        /// Sets whether an archive may end without its block of zeros, see [`TarShards::allow_missing_end`].
        allow_missing_end: bool = false,
        /// Sets the maximum number of bytes of the members of a sample together. The default is 1 GiB.
        #[serde(with = "loader_core::units::Size")]
        max_sample_bytes: u64 = MAX_SAMPLE_BYTES,
    }
}

impl TarOptions {
    /// Opens the files as a stream.
    ///
    /// # Errors
    /// As for [`TarShards::open`].
    pub fn open(&self) -> Result<TarShards<Record>, DataError> {
        let shards = TarShards::new(self.source.files(&EXTENSIONS)?, self.decoding())
            .index(self.index.clone())
            .shuffle_files(self.shuffle_files)
            .allow_missing_end(self.allow_missing_end)
            .max_sample_bytes(self.max_sample_bytes);
        Ok(shards)
    }

    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`TarShards::indexed`]. Also returns an error if `shuffle_files` is set: only
    /// streams have this option.
    pub fn open_indexed(&self) -> Result<IndexedTar<Record>, DataError> {
        if self.shuffle_files {
            return Err(self.source.only_for_streams("shuffle_files", "tar"));
        }
        self.open()?.indexed()
    }

    /// Describes the stored index of each file, without making one: [`open_indexed`](Self::open_indexed)
    /// makes those that are not current.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn indexes(&self) -> Result<Vec<StoredIndex>, DataError> {
        Ok(indexed::check(&self.open()?))
    }

    fn decoding(&self) -> Decoding {
        Decoding::new(self.fields.clone(), self.rename.clone().into_iter().collect(), self.decode)
    }
}
