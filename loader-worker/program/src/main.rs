//! The stock worker program: serves every dataset of `loader-data`, by the name of its kind in a config. Set `LOADER_WORKER` to
//! its path, or lay it beside a program that does not call `loader_worker::init()`.

use std::process::ExitCode;

use loader_data::ImageFolder;
use loader_worker::Registry;

fn main() -> ExitCode {
    Registry::new()
        .register::<ImageFolder<f32>>("image-folder")
        .register::<ImageFolder<u8>>("image-folder-u8")
        .serve()
}
