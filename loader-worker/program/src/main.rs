//! The stock worker program. It serves every dataset of `loader-data` under the name of its kind in a config.
//! To use it, set `LOADER_WORKER` to its path, or put it into the folder of a program that does not call
//! `loader_worker::init()`.

use std::process::ExitCode;

use loader_data::ImageFolder;
use loader_worker::Registry;

fn main() -> ExitCode {
    Registry::new()
        .register::<ImageFolder<f32>>("image-folder")
        .register::<ImageFolder<u8>>("image-folder-u8")
        .serve()
}
