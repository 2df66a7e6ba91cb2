//! Rows of an Arrow IPC file: the columns of `parquet`.

use std::path::Path;

use loader_core::DataLoader;
use loader_data::{Arrow, Columns};

use crate::options::Options;

pub(super) fn loader(options: &Options, path: &Path, shuffle: bool) -> anyhow::Result<DataLoader<Columns>> {
    Ok(DataLoader::builder(Arrow::open(path)?).options(options.loader()).shuffle(shuffle).build()?)
}
