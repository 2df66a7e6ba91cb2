//! A data loader for training loops, with the semantics of PyTorch's `DataLoader`, on operating-system worker
//! processes.
//!
//! The main process sends batches of indices to worker processes. Each worker loads the samples from its copy
//! of the dataset, collates them into a batch, and writes the batch into shared memory. The main process
//! returns the batches to the training loop in order, without a copy. The same seed gives the same batches
//! with any number of workers.
//!
//! The package is called `process-loader`, because the name `loader` was taken on crates.io; the library that it
//! contains is called `loader`.
//!
//! Of the loader's crates, a program depends on this one alone (`cargo add process-loader`). Datasets also need `serde`,
//! with its feature `derive`, and `anyhow`.
//!
//! # Example
//! ```standalone_crate
//! use loader::{prelude::*, rand::RngExt};
//! use serde::{Deserialize, Serialize};
//!
//! /// A dataset. Each worker receives a copy of it.
//! #[derive(Serialize, Deserialize)]
//! struct Waves {
//!     count: usize,
//! }
//!
//! /// A sample. The derive makes the batch type `WaveBatch`, with a tensor for each field.
//! #[derive(Sample)]
//! struct Wave {
//!     points: [f32; 16],
//!     class: u8,
//! }
//!
//! impl Dataset for Waves {
//!     type Sample = Wave;
//!
//!     fn len(&self) -> usize {
//!         self.count
//!     }
//!
//!     fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Wave> {
//!         let shift: f32 = cx.rng().random(); // depends on the seed, the epoch and the sample alone
//!         let class = index % 3;
//!         let points = std::array::from_fn(|x| ((x as f32 + shift) * (class + 1) as f32).sin());
//!         Ok(Wave { points, class: class as u8 })
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     loader::init(); // the first line of main: a worker never returns from it
//!
//!     let loader = DataLoader::builder(Waves { count: 100 })
//!         .batch_size(32)
//!         .shuffle(true)
//!         .seed(7)
//!         .num_workers(2)
//!         .build()?;
//!     let mut samples = 0;
//!     for batch in loader.iter()? {
//!         let WaveBatch { points, class } = batch?; // views of shared memory
//!         assert_eq!(points.shape(), [class.len(), 16]);
//!         samples += class.len();
//!     }
//!     assert_eq!(samples, 100);
//!     Ok(())
//! }
//! ```
//!
//! # Where to read on
//! - [`Dataset`] for data that has a length and an index (map-style), [`IterableDataset`] for streams.
//!   [`TensorDataset`], [`Subset`], [`ConcatDataset`] and the methods of both traits compose datasets.
//! - [`Builder`] lists all options. [`DataLoader::iter`] starts an epoch; [`Iter`] returns its batches.
//! - [`collate`] makes batches of samples, [`sampler`] determines their order.
//! - [`Iter::state`] and [`DataLoader::resume`] save the position in an epoch and continue from it.
//! - [`Error`] says what can go wrong. A worker that dies is replaced.
//! - [`init`] says what runs in workers. Tests use [`init_before_main!`], and separate worker programs use a
//!   [`Registry`].
//!
//! # Features
//! All features are off by default.
//!
//! - `data`: Folders of images, in the module `loader::data`. The image codecs take long to build.
//! - `more-images`: Images of more types: BMP, GIF, PBM, PGM, PPM, TIFF and WebP. Includes `data`.
//! - `records`: JSON lines, lines of text, CSV, tar archives, arrays and token files, in the module
//!   `loader::data`.
//! - `columnar`: Parquet and Arrow IPC, folders of files with a table, and packing. Includes `records`.
//! - `audio`: WAV, FLAC, MP3 and Ogg Vorbis; the decoder symphonia is under the MPL-2.0. Includes `records`.
//! - `formats`: All formats of files, and datasets by the names that a config gives them. Includes all
//!   features above.
//! - `cloud`: Files of the formats that are turned on, on S3, Google Cloud Storage and Azure, and on HTTP
//!   servers, except for folders of images. Includes `records`.
//! - `tokenizer`: Tokenizers of Hugging Face, in the module `loader::data`. They take long to build. Includes
//!   `records`.
//! - `config`: Options from TOML files and from environment variables: `loader::config::Config` and
//!   `Builder::config`.
//! - `stream`: Batches as a `Stream` for async programs.
//! - `cuda`: Page-locked batches for a GPU. Builds without CUDA; the program loads NVIDIA's driver if there
//!   is one.
//! - `tracing`: Events and spans for subscribers of the package tracing, with the target `loader`.
//!
//! With `config` and `data`, `data::DatasetConfig` reads the section `[dataset]` of a config.
//!
//! # `loader-core` and `loader-worker`
//! This crate exports all of `loader-core`, and the items of `loader-worker` that a program calls. It adds no
//! types of its own. A library of datasets can depend on `loader-core` alone. Some examples write
//! `loader_core::`; a program that depends on this crate writes `loader::` instead.

#![cfg_attr(docsrs, feature(doc_cfg))]

// The glob below exports this module too. Because it is also named here, the compiler can tell a program that
// lacks the feature which feature it needs.
#[cfg(feature = "config")]
/// # Examples
/// A program that reads its data and its options from a file, as the `loader` command does:
/// ```
/// use loader::{config::Config, prelude::*};
/// use serde::Deserialize;
///
/// /// The section `[dataset]`.
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Section {
///     path: std::path::PathBuf,
/// }
///
/// # let folder = std::env::temp_dir().join(format!("loader-config-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let file = folder.join("run.toml");
/// # std::fs::write(folder.join("bytes"), [7; 100])?;
/// # std::fs::write(&file, "[dataset]\npath = \"bytes\"\n[loader]\nbatch_size = 32\nmemory_limit = \"1 GiB\"\n")?;
/// let config = Config::load_as::<Section>(file)?; // "run.toml"
/// let path = config.folder_of("dataset.path").join(&config.dataset.path);
/// let bytes = std::fs::read(path)?;
/// let rows = bytes.len();
/// let dataset = TensorDataset::new(Tensor::from_vec(bytes, [rows])?)?;
/// let loader = DataLoader::builder(dataset).config(&config)?.build()?; // environment variables override the file
/// assert_eq!(loader.len(), Some(4));
/// # std::fs::remove_dir_all(folder)?;
/// # anyhow::Ok(())
/// ```
#[doc(inline)]
pub use loader_core::config;
#[doc(inline)]
pub use loader_core::*;
#[doc(inline)]
pub use loader_worker::{Registry, StartRequest, Template, init, init_before_main};

/// Derives [`Sample`](trait@Sample), the default collation, for a struct whose fields all implement it.
///
/// For `struct Digit { pixels: [f32; 64], label: u8 }` it generates `struct DigitBatch { pixels: Tensor<f32>,
/// label: Tensor<u8> }` with the same visibilities. `DigitBatch` implements `Serialize` and `Deserialize`, so
/// it can be the batch of a loader.
///
/// - `#[sample(derive(Debug, Clone))]` adds derives to `DigitBatch`, and to the structs below if it is `Debug` or
///   `Clone`.
/// - `#[sample(crate = "records")]` says that the program depends on this crate under the name `records`.
/// - `#[sample(burn)]` also generates `struct DigitBurn` with tensors of burn, and the method
///   `DigitBatch::to_burn`. The program depends on `loader-burn`, which has an example. A field whose type does
///   not tell the rank, such as a `Tensor<f32>`, needs `#[sample(rank = N)]`, where `N` counts the dimension of
///   the batch too.
/// - `#[sample(candle)]` also generates `struct DigitCandle` with tensors of candle, and the method
///   `DigitBatch::to_candle`. The program depends on `loader-candle`, which has an example. candle has no `bool`,
///   `i8`, `u16`, `u64` and `usize`: `#[sample(candle = "i64")]` on such a field converts its tensor.
/// - Fields that are listed unchanged, such as `String` and `Keep<T>`, are cloned into these structs, so `T` must
///   implement `Clone`.
///
/// # Examples
/// ```
/// use loader::prelude::*;
///
/// #[derive(Sample)]
/// #[sample(derive(Debug))]
/// struct Digit {
///     pixels: [f32; 64],
///     label: u8,
/// }
///
/// fn first_label(batch: &DigitBatch) -> u8 {
///     batch.label.as_slice()[0]
/// }
/// ```
#[doc(inline)]
pub use loader_core_derive::LoaderSample as Sample;

/// Derives [`Convert`](trait@Convert), the default conversion for a loader without batches, for a struct
/// whose fields all implement it.
///
/// For `struct Digit { pixels: [f32; 64], label: u8 }` it generates `struct DigitItem { pixels: Tensor<f32>,
/// label: u8 }` with the same visibilities. `DigitItem` implements `Serialize` and `Deserialize`, so it can
/// be the item of a loader. The derive takes the same attributes as the derive of `Sample`.
///
/// # Examples
/// ```
/// use loader::{Convert, Tensor};
///
/// #[derive(Convert)]
/// struct Digit {
///     pixels: [f32; 64],
///     label: u8,
/// }
///
/// let item: DigitItem = Digit { pixels: [0.5; 64], label: 3 }.convert()?;
/// assert_eq!((item.pixels.shape(), item.label), ([64].as_slice(), 3));
/// # Ok::<(), loader::collate::CollateError>(())
/// ```
#[doc(inline)]
pub use loader_core_derive::LoaderConvert as Convert;

#[cfg(any(feature = "data", feature = "records"))]
#[doc(inline)]
pub use loader_data as data;

/// The types and traits that most programs need.
///
/// This module exports no name that `anyhow` or the standard library's prelude exports too. So a program can
/// also import `anyhow::Context`, or define its own `Error`.
pub mod prelude {
    #[doc(inline)]
    pub use loader_core::prelude::*;
    #[doc(no_inline)]
    pub use loader_core_derive::LoaderSample as Sample;
}
