//! Opens the dataset, and looks at the folders that it writes to.

use std::{path::PathBuf, time::Instant};

use loader_core::Dataset;

#[cfg(feature = "formats")]
use super::cache;
use super::{
    report::{Check, Status},
    storage,
};
use crate::{
    dataset::{Opened, ResolvedDataset},
    interrupt::Interrupt,
    settings::Target,
    stop::Stop,
};

pub(super) fn checks(target: Target, interrupt: Interrupt) -> Result<Vec<Check>, Stop> {
    const NAME: &str = "dataset";
    let refused = |stop: &Stop| {
        let (_, problem) = stop.message().unwrap_or_default();
        // The message says what to do.
        vec![Check::new(NAME, Status::Error, problem, "`loader run` cannot load it")]
    };
    let begun = Instant::now();
    let opened = target.dataset.resolved().and_then(|dataset| Ok((dataset.open()?, dataset)));
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
    if let ResolvedDataset::Records(config) = &dataset {
        checks.extend(config.cache_folders().iter().map(|folder| cache::check(folder)));
    }
    Ok(checks)
}

fn samples(opened: &Opened) -> Option<usize> {
    match opened {
        Opened::F32(images) => Some(images.len()),
        Opened::U8(images) => Some(images.len()),
        #[cfg(feature = "formats")]
        Opened::Records(records) => match &**records {
            loader_data::Records::Map(records) => Some(records.len()),
            loader_data::Records::Stream(_) => None,
        },
    }
}

/// Lists the paths or URLs of the dataset's files.
fn files(opened: &Opened, dataset: &ResolvedDataset) -> Result<Vec<PathBuf>, Stop> {
    match (opened, dataset) {
        (Opened::F32(images), _) => Ok((0..images.len()).filter_map(|index| images.path(index)).collect()),
        (Opened::U8(images), _) => Ok((0..images.len()).filter_map(|index| images.path(index)).collect()),
        #[cfg(feature = "formats")]
        (Opened::Records(_), ResolvedDataset::Records(config)) => {
            Ok(config.files()?.into_iter().map(|(path, _)| path).collect())
        }
        #[cfg(feature = "formats")]
        (Opened::Records(_), ResolvedDataset::Images(_)) => unreachable!("an image folder has no records"),
    }
}
