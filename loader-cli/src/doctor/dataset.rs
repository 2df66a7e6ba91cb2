//! Opens the dataset, and looks at the folders that it writes to.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use loader_core::Dataset;
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use super::{
    report::{Check, Status, bytes},
    storage,
};
use crate::{
    dataset::{Opened, ResolvedDataset},
    interrupt::Interrupt,
    settings::Target,
    stop::Stop,
};

/// A cache with less space is worth a warning.
const LITTLE_SPACE: u64 = 1 << 30;

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
    let mut folders = Vec::new();
    add_folders(&serde_json::to_value(&dataset).unwrap_or_default(), &mut folders);
    checks.extend(folders.iter().map(|folder| space(Path::new(folder))));
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

/// Adds the values of the keys named `folder`, which are those of caches.
fn add_folders(config: &Value, folders: &mut Vec<String>) {
    if let Value::Object(keys) = config {
        for (key, value) in keys {
            match value {
                Value::String(folder) if key == "folder" => folders.push(folder.clone()),
                value => add_folders(value, folders),
            }
        }
    }
}

fn space(folder: &Path) -> Check {
    const NAME: &str = "cache";
    // The cache makes the folder.
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    match statvfs(existing) {
        Ok(system) => {
            #[allow(clippy::useless_conversion, reason = "the types depend on the architecture")]
            let free = u64::from(system.blocks_available()) * u64::from(system.fragment_size());
            let found = format!("{} are free in {}", bytes(free), folder.display());
            match free < LITTLE_SPACE {
                true => Check::new(NAME, Status::Warning, found, "a full cache keeps no more samples")
                    .advice("use a folder on a larger disk, or free space"),
                false => Check::new(NAME, Status::Ok, found, "the cache fills it up to its own limit"),
            }
        }
        Err(error) => {
            let found = format!("{}: {error}", folder.display());
            Check::new(NAME, Status::Error, found, "the cache cannot be used").advice("name another folder")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_folders_of_caches_are_found() {
        let mut folders = Vec::new();
        let config = json!({
            "kind": "cached", "folder": "/a",
            "dataset": { "path": ["x"], "cache": { "folder": "/b", "max_bytes": 7 } },
        });
        add_folders(&config, &mut folders);
        folders.sort();
        assert_eq!(folders, ["/a", "/b"]);
    }
}
