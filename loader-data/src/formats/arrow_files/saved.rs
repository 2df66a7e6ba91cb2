//! Folders that `save_to_disk` of Hugging Face's `datasets` wrote.

use std::path::Path;

use serde::{Deserialize, de::DeserializeOwned};

use super::EXTENSIONS;
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    source::{Files, Location, StoreOptions},
};

/// Names the data files of a folder, in order.
const STATE: &str = "state.json";

/// Names the splits of a folder, which are its sub-folders.
const SPLITS: &str = "dataset_dict.json";

/// Maximum number of bytes of these files.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    data_files: Vec<DataFile>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

/// Replaces each folder that `save_to_disk` wrote by its data files, in the order of its `state.json`. Other
/// Arrow files in the folder, such as those in which `map` keeps its results, are not part of the dataset.
///
/// # Errors
/// Returns [`DataProblem::InvalidOption`] if a folder has splits, and [`DataProblem::Malformed`] if its files
/// cannot be parsed, or name files outside of the folder.
pub(super) fn data_files(source: &SourceOptions) -> Result<SourceOptions> {
    let store = source.store.clone().unwrap_or_else(StoreOptions::current);
    let source = &source.resolved(&EXTENSIONS)?;
    let mut path = Vec::new();
    for pattern in &source.path {
        let folder = Location::new(pattern);
        if !folder.is_folder() {
            path.push(pattern.clone());
        } else if let Some((state, State { data_files })) = read(&folder, STATE, &store)? {
            let malformed =
                |reason: String| DataError::new(&state, DataProblem::Malformed { format: STATE, reason });
            if data_files.is_empty() {
                return Err(malformed("it names no data files".to_owned()));
            }
            for DataFile { filename } in data_files {
                if Path::new(&filename).file_name() != Some(filename.as_ref()) {
                    return Err(malformed(format!("`{filename}` is not the name of a file in its folder")));
                }
                path.push(folder.join(&filename).as_path().to_owned());
            }
        } else if let Some((_, Splits { splits })) = read(&folder, SPLITS, &store)? {
            let reason =
                format!("the folder has the splits {}; give the folder of one of them", splits.join(", "));
            return Err(DataError::new(&folder, DataProblem::InvalidOption { option: "path", reason }));
        } else {
            path.push(pattern.clone());
        }
    }
    Ok(source.narrowed(path))
}

/// Reads the JSON file `name` in `folder`, if there is one.
fn read<T: DeserializeOwned>(
    folder: &Location,
    name: &'static str,
    store: &StoreOptions,
) -> Result<Option<(Location, T)>> {
    let location = folder.join(name);
    let Some(files) = Files::find(&location, store)? else { return Ok(None) };
    let file = files.open(0)?;
    if file.len() > MAX_BYTES {
        let problem = DataProblem::Malformed { format: name, reason: format!("it has {} bytes", file.len()) };
        return Err(DataError::new(&location, problem));
    }
    match serde_json::from_slice(&file.read(0..file.len())?) {
        Ok(content) => Ok(Some((location, content))),
        Err(error) => {
            let problem = DataProblem::Malformed { format: name, reason: error.to_string() };
            Err(DataError::new(&location, problem))
        }
    }
}
