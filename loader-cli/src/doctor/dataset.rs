//! Opens the dataset, and looks at the folders that it writes to.

use std::{path::PathBuf, time::Instant};

use loader_core::Dataset;
use loader_data::{DatasetConfig, OpenDataset};

#[cfg(feature = "formats")]
use super::cache;
use super::{
    report::{Check, Status},
    storage,
};
use crate::{interrupt::Interrupt, settings::Target, stop::Stop};

pub(super) fn checks(target: Target, interrupt: Interrupt) -> Result<Vec<Check>, Stop> {
    const NAME: &str = "dataset";
    let refused = |stop: &Stop| {
        let (_, problem) = stop.message().unwrap_or_default();
        // The message says what to do.
        vec![Check::new(NAME, Status::Error, problem, "`loader run` cannot load it")]
    };
    let begun = Instant::now();
    let opened = open(target.dataset);
    let (opened, dataset) = match opened {
        Ok(opened) => opened,
        Err(stop) => return Ok(refused(&stop)),
    };
    let time = begun.elapsed();
    interrupt.check()?;
    let samples = samples(&opened).map_or("a stream".to_owned(), |count| format!("{count} samples"));
    let found = format!("{samples}, opened in {time:.1?}");
    let mut checks =
        vec![Check::new(NAME, Status::Ok, found, "`loader inspect` reads all of it and lists bad files")];
    match files(&opened, &dataset) {
        Ok(files) => checks.push(storage::check(&files)),
        Err(stop) => checks.extend(refused(&stop)),
    }
    #[cfg(feature = "formats")] // image folders have no cache
    if let DatasetConfig::Records(config) = &dataset {
        checks.extend(config.cache_folders().iter().map(|folder| cache::check(folder)));
    }
    Ok(checks)
}

fn open(dataset: DatasetConfig) -> Result<(OpenDataset, DatasetConfig), Stop> {
    let dataset = dataset.resolved()?;
    Ok((dataset.open()?, dataset))
}

fn samples(opened: &OpenDataset) -> Option<usize> {
    match opened {
        OpenDataset::F32(images) => Some(images.len()),
        OpenDataset::U8(images) => Some(images.len()),
        #[cfg(feature = "formats")]
        OpenDataset::Records(records) => match &**records {
            loader_data::Records::Map(records) => Some(records.len()),
            loader_data::Records::Stream(_) => None,
        },
        _ => None,
    }
}

/// Lists the paths or URLs of the dataset's files.
fn files(opened: &OpenDataset, dataset: &DatasetConfig) -> Result<Vec<PathBuf>, Stop> {
    match (opened, dataset) {
        (OpenDataset::F32(images), _) => {
            Ok((0..images.len()).filter_map(|index| images.path(index)).collect())
        }
        (OpenDataset::U8(images), _) => {
            Ok((0..images.len()).filter_map(|index| images.path(index)).collect())
        }
        #[cfg(feature = "formats")]
        (OpenDataset::Records(_), DatasetConfig::Records(config)) => {
            Ok(config.files()?.into_iter().map(|(path, _)| path).collect())
        }
        _ => Err(Stop::without_formats(dataset.kind())),
    }
}
