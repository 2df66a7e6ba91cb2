//! Folders of files with a table that names them: `find` finds and opens the table, and `table` reads the files
//! of its rows. The public datasets differ in the field that `file_name` stands for.

mod find;
mod table;

use std::path::Path;

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use crate::{
    error::{DataError, Result},
    options::format_options,
    record::{FieldOptions, Record},
};
use table::FileTable;

pub use find::TABLE_NAMES;

/// Default of the maximum number of bytes of a file that a row names.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Field of a table that names the file of a row.
const FILE_NAME: &str = "file_name";

/// Makes the dataset and the options of a table whose field `file_name` names the file of the field `$field`.
macro_rules! file_table {
    (
        $(#[$about:meta])*
        $table:ident,
        $(#[$about_options:meta])*
        $options:ident,
        $field:literal
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct $table(FileTable);

        impl $table {
            /// Opens the table at `path`, or the only table in the folder at `path`. The URL of a folder ends
            /// with `/`. Reads none of the files that the rows name. The columns of a CSV table have the types
            /// that [`Csv`](crate::Csv) finds, but names of files are always text.
            ///
            /// # Errors
            /// Returns [`DataError`] if there is no table, if the table cannot be read, if the folder has several
            /// tables, or if a CSV table has neither a column `file_name` nor one that ends with
            /// `_file_name`. Does not check whether the files exist.
            pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
                $options::new(path).open()
            }
        }

        format_options! {
            $(#[$about_options])*
            pub struct $options {
                /// Sets which fields a record has, and the dtypes of its numbers. A file whose field is not
                /// selected is not read.
                #[serde(flatten)]
                fields: FieldOptions = FieldOptions::new(),
                /// Sets the maximum number of bytes of a file that a row names. The default is 256 MiB.
                #[serde(with = "loader_core::units::Size")]
                max_file_bytes: u64 = MAX_FILE_BYTES,
            }
        }

        impl $options {
            /// Opens the table.
            ///
            /// # Errors
            #[doc = concat!("As for [`", stringify!($table), "::open`].")]
            pub fn open(&self) -> Result<$table, DataError> {
                let fields = self.fields.clone();
                Ok($table(FileTable::open(&self.source, $field, fields, self.max_file_bytes)?))
            }

            /// Finds the table.
            #[cfg(feature = "formats")]
            pub(crate) fn files(&self) -> Result<crate::source::Files> {
                find::find(&self.source)
            }
        }

        impl Dataset for $table {
            type Sample = Record;

            fn len(&self) -> usize {
                self.0.len()
            }

            fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
                let mut samples = self.0.get_many(&[index], cx)?;
                Ok(samples.pop().expect("`get_many` returns a sample for each index"))
            }

            fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
                self.0.get_many(indices, cx)
            }

            /// Returns the fingerprint of the table, and the options of the fields.
            fn fingerprint(&self) -> String {
                self.0.fingerprint()
            }
        }
    };
}

file_table! {
    /// A folder of images with a table of their labels, captions or boxes: the layout `imagefolder` of Hugging
    /// Face's `datasets`, with `metadata.csv`, `metadata.jsonl` or `metadata.parquet`.
    ///
    /// The field `file_name` of each row names an image, relative to the folder of the table. A sample is a
    /// [`Record`]: the fields of the row, and the field `image`, a record of the encoded `bytes` and the
    /// `path` of the file. [`DecodedRecords`](crate::DecodedRecords) decodes it. Splits are folders: open
    /// `data/train` and `data/test`.
    ///
    /// A row may name several files: the field `mask_file_name` names the file of the field `mask`, and so on
    /// for each field that ends with `_file_name`. These files may have any type. A null or an empty text in
    /// such a field gives a null. The table then needs no `file_name`.
    ///
    /// A name may have sub-folders. A name that is absolute or has `..` in it, and one from which a symbolic link leads
    /// out of the folder, are errors of their samples. If the table is a symbolic link, the links of names may also lead
    /// into the folder of its target.
    ///
    /// # On a server
    /// The table may be at a URL; the names of images are then relative to the folder of this URL. Images are
    /// not listed when the table is opened: when a worker loads an image, it asks for the size and version,
    /// and then for the bytes. It loads up to 16 images of a batch at the same time.
    ///
    /// In the URLs of images on an HTTP server, names are escaped. These URLs have no query, so a signature in
    /// the URL of the table does not sign the images.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::{DecodedRecords, ImageColumn, ImageTable, Transform};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::copy("photos/table/coffee.jpg", folder.path().join("coffee.jpg"))?;
    /// # let table = "{\"file_name\": \"coffee.jpg\", \"text\": \"a cup of coffee\"}\n";
    /// # std::fs::write(folder.path().join("metadata.jsonl"), table)?;
    /// # std::env::set_current_dir(&folder)?;
    /// let captions = ImageTable::open(".")?; // has metadata.jsonl
    /// let column = ImageColumn::u8(Transform::new().random_resized_crop(64))?;
    /// let captions = DecodedRecords::new(captions, [("image", column)]);
    /// let sample = captions.get(0, &mut SampleContext::new(7))?;
    /// assert_eq!(sample.get("text"), Some(&"a cup of coffee".into()));
    /// # anyhow::Ok(())
    /// ```
    ImageTable,
    /// Which folder of images with a table to read, for example from a config file. `path` is the folder or
    /// the table.
    ///
    /// # Examples
    /// ```
    /// use loader_data::ImageTableOptions;
    ///
    /// let options: ImageTableOptions = serde_json::from_str(r#"{"path": "photos", "fields": ["image", "text"]}"#)?;
    /// let error = options.open().unwrap_err().to_string();
    /// assert!(error.contains("has none of metadata.csv, metadata.jsonl, metadata.parquet"), "{error}");
    /// # anyhow::Ok(())
    /// ```
    ImageTableOptions,
    "image"
}

file_table! {
    /// A folder of audio files with a table of their transcriptions or labels: the layout `audiofolder` of
    /// Hugging Face's `datasets`, with `metadata.csv`, `metadata.jsonl` or `metadata.parquet`.
    ///
    /// The field `file_name` of each row names an audio file, relative to the folder of the table. A sample is
    /// a [`Record`]: the fields of the row, and the field `audio`, a record of the encoded `bytes` and the
    /// `path` of the file. [`DecodedRecords`](crate::DecodedRecords) decodes it. Splits are folders.
    ///
    /// `AudioTable` treats fields that end with `_file_name`, names of files outside the folder, and URLs as
    /// `ImageTable` does.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::{AudioTable, AudioTransform, DecodedRecords};
    ///
    /// # let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/audio/s16.wav");
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::copy(fixture, folder.path().join("1.wav"))?;
    /// # std::fs::write(folder.path().join("metadata.csv"), "file_name,transcription\n1.wav,good morning\n")?;
    /// # std::env::set_current_dir(&folder)?;
    /// let speech = AudioTable::open(".")?; // has metadata.csv
    /// let speech = DecodedRecords::new(speech, [("audio", AudioTransform::new(16_000).mono())]);
    /// let sample = speech.get(0, &mut SampleContext::new(7))?;
    /// assert_eq!(sample.get("transcription"), Some(&"good morning".into()));
    /// # anyhow::Ok(())
    /// ```
    AudioTable,
    /// Which folder of audio files with a table to read, for example from a config file. `path` is the folder
    /// or the table.
    ///
    /// # Examples
    /// ```
    /// use loader_data::AudioTableOptions;
    ///
    /// let options: AudioTableOptions = serde_json::from_str(r#"{"path": "speech", "fields": ["audio", "text"]}"#)?;
    /// let error = options.open().unwrap_err().to_string();
    /// assert!(error.contains("speech`: no such file; check the path"), "{error}");
    /// # anyhow::Ok(())
    /// ```
    AudioTableOptions,
    "audio"
}
