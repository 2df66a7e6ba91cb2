//! The ready-made worker program. It serves the datasets that `loader run` loads, under the same names. To
//! use it, set `LOADER_WORKER` to its path, or put it into the folder of a program that does not call
//! `loader_worker::init()`.
//!
//! Without features it reads image folders. With `formats` it also reads every other format from local files,
//! and with `cloud` from servers, such as `s3://bucket/train.parquet`.

use std::process::ExitCode;

use loader_data::ImageFolder;
use loader_worker::Registry;

fn main() -> ExitCode {
    let registry = Registry::new()
        .register::<ImageFolder<f32>>("image-folder")
        .register::<ImageFolder<u8>>("image-folder-u8");
    #[cfg(feature = "formats")]
    let registry = {
        use loader_core::{collate::DefaultCollate, kind};
        use loader_data::{RecordDataset, RecordStream};

        type Stream = kind::Iterable<kind::Snapshots<RecordStream>>;
        let registry = registry.register::<RecordDataset>("records");
        registry.register_kind::<Stream, DefaultCollate, kind::NoWorkerInit>("record-stream")
    };
    registry.serve()
}
