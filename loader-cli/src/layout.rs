//! The data that a target names without a config: files, patterns, and folders, also in the layouts of
//! Hugging Face's `datasets`.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
};

use loader_data::{
    ArrowOptions, AudioTableOptions, CardFiles, DataProblem, DatasetConfig, IMAGE_EXTENSIONS,
    ImageFolderOptions, ImageTableOptions, RecordConfig, TABLE_NAMES, is_hidden_in_rows, set_of_part,
};

use crate::{arguments::is_url, stop::Stop};

/// Names of splits that `datasets` finds in the names of files and folders.
const SPLITS: [&str; 10] =
    ["train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"];

/// How many folders the command searches for data files that are not where it reads them.
const MAX_SEARCHED: usize = 1000;

/// Returns settings for the files that `target` names: a path, a pattern, or a folder with data files in it,
/// in its folder `data`, or in a folder of a split; or the files that the header of its README.md names. Returns
/// `None` if their extension is that of no format.
///
/// # Errors
/// Returns an error if a folder has files of several kinds or splits, or if the header cannot be used.
pub(crate) fn of_target(target: &Path) -> Result<Option<DatasetConfig>, Stop> {
    if !target.is_dir() {
        let config = RecordConfig::of_extension(target, target);
        if config.is_none() && is_url(target) {
            let shown = loader_data::without_credentials(target);
            let message =
                format!("the extension of `{shown}` is of no known format; give a config (a .toml file)");
            return Err(Stop::InvalidArguments(message));
        }
        return Ok(config.map(records));
    }
    let (folder, found) = match CardFiles::read(target) {
        Ok(None) => (None, of_names(target)?),
        Ok(Some(card)) => match (of_files(target, &card)?, card.folder) {
            (None, None) => {
                return Err(Stop::InvalidArguments(format!(
                    "the README.md of `{}` names only some of the images in a folder, which the command cannot read; give \
                     a folder of images, or a config (a .toml file)",
                    target.display()
                )));
            }
            (found, folder) => (folder, found),
        },
        Err(error) if matches!(error.problem, DataProblem::InvalidOption { .. }) => {
            let message = format!("{error} (an option of the section [dataset] of a config, a .toml file)");
            return Err(Stop::InvalidArguments(message));
        }
        Err(error) => return Err(error.into()),
    };
    // If the folder has no data files, it may have images.
    if found.is_none() {
        check_splits(target, folder.as_deref().unwrap_or(target))?;
    }
    let images = |folder| DatasetConfig::ImageFolder(ImageFolderOptions::new(folder));
    Ok(found.map(records).or_else(|| folder.map(images)))
}

/// Returns the config of the same dataset, read in order. This needs no index, and reads no block twice.
pub(crate) fn in_order(config: RecordConfig) -> RecordConfig {
    match config {
        RecordConfig::Arrow(options) => RecordConfig::ArrowStream(options),
        RecordConfig::Csv(options) => RecordConfig::CsvStream(options),
        RecordConfig::JsonLines(options) => RecordConfig::JsonLinesStream(options),
        RecordConfig::Parquet(options) => RecordConfig::ParquetStream(options),
        RecordConfig::IndexedTar(options) => RecordConfig::Tar(options),
        RecordConfig::TextLines(options) => RecordConfig::TextLinesStream(options),
        other => other,
    }
}

/// Fails if `folder`, which is in `target` or is the target, has folders of splits with class folders in them.
pub(crate) fn check_splits(target: &Path, folder: &Path) -> Result<(), Stop> {
    let has_folders = |split: &PathBuf| entries(split).any(|path| path.is_dir());
    let Some(split) = splits_in(folder).find(has_folders) else { return Ok(()) };
    Err(Stop::InvalidArguments(format!(
        "`{}` has folders of splits, which are no classes; give one of them, such as `{}`",
        target.display(),
        split.display()
    )))
}

fn records(config: RecordConfig) -> DatasetConfig {
    DatasetConfig::Records(Box::new(config))
}

/// Returns settings for the files that the header of the README.md in `folder` names. Returns `None` if they are
/// images without a table.
fn of_files(folder: &Path, card: &CardFiles) -> Result<Option<RecordConfig>, Stop> {
    let files = &card.files;
    let is_table = |path: &&PathBuf| TABLE_NAMES.iter().any(|name| path.ends_with(name));
    let mut tables = files.iter().filter(is_table);
    match (tables.next().map(|table| (table, table.parent())), tables.next()) {
        (None, _) => {}
        (Some((_, Some(parent))), None) => return Ok(Some(of_table(parent))),
        (Some((table, _)), _) => return Err(several(folder, "several tables of files", table)),
    }
    if files.iter().all(|path| is_image(path)) {
        return Ok(None);
    }
    let mut chosen: Option<RecordConfig> = None;
    for path in files {
        let Some(config) = card.config_of(path) else {
            return Err(Stop::InvalidArguments(format!(
                "the header of README.md names `{}`, which is of no known format; give a config (a .toml file)",
                path.display()
            )));
        };
        if chosen.get_or_insert(config.clone()).kind() != config.kind() {
            return Err(several(folder, "data files of several formats", &folder.join("*.jsonl")));
        }
    }
    // Partitions below the folder give columns, which a list of the files would name.
    let of_folder = |config: RecordConfig| {
        let mut keys = serde_json::to_value(config)?;
        keys["path"] = serde_json::to_value(folder)?;
        keys["config"] = card.config.clone().into();
        serde_json::from_value(keys)
    };
    let failed = |error| Stop::InvalidArguments(format!("the README.md of `{}`: {error}", folder.display()));
    chosen.map(of_folder).transpose().map_err(failed)
}

/// Returns settings for the data files of the folder `target`, whose names tell their format and splits.
fn of_names(target: &Path) -> Result<Option<RecordConfig>, Stop> {
    let mut found = of_folder(target)?.map(|config| (target.to_owned(), config));
    if found.is_some() {
        return Ok(found.map(|(_, config)| config));
    }
    let data = target.join("data");
    let splits = [target, &data].into_iter().flat_map(|folder| SPLITS.map(|split| folder.join(split)));
    for folder in [data.clone()].into_iter().chain(splits) {
        let Some(config) = of_folder(&folder)? else { continue };
        if let Some((other, _)) = found.replace((folder.clone(), config)) {
            let message = format!(
                "`{}` has data files in several folders; give one of them, such as `{}` or `{}`",
                target.display(),
                other.display(),
                folder.display()
            );
            return Err(Stop::InvalidArguments(message));
        }
    }
    let config = found.map(|(_, config)| config);
    Ok(config.or_else(|| [target, &data].into_iter().find_map(|folder| of_partitions(folder, folder))))
}

/// Returns settings for the files below `target` if `folder`, which is the target or a folder of a partition in it, has
/// folders of partitions, such as `year=2024`, with files of rows in them.
fn of_partitions(target: &Path, folder: &Path) -> Option<RecordConfig> {
    let is_partition = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.is_dir() && name.split_once('=').is_some_and(|(column, _)| !column.is_empty())
    };
    let rows = |partition: &Path| {
        let files = entries(partition).filter(|path| path.is_file() && !is_hidden(path));
        files.filter_map(|path| RecordConfig::of_extension(&path, target)).find(|config| !is_text(config))
    };
    let mut partitions = entries(folder).filter(is_partition);
    partitions.find_map(|partition| rows(&partition).or_else(|| of_partitions(target, &partition)))
}

/// Returns settings for the data files directly in `folder`, if there are any.
fn of_folder(folder: &Path) -> Result<Option<RecordConfig>, Stop> {
    // If the folder cannot be listed, opening the dataset returns the error.
    let files = entries(folder).filter(|path| path.is_file() && !is_hidden(path));
    let names: Vec<String> = files.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let has_name = |name: &str| names.iter().any(|other| other == name);
    // Written by `loader pack`, with a manifest.
    let is_packed = has_name("shard-000000.tar") || has_name("shard-000000.parquet");
    // Written by `save_to_disk`.
    if has_name("dataset_dict.json") || has_name("state.json") && has_name("dataset_info.json") {
        return Ok(Some(RecordConfig::Arrow(ArrowOptions::new(folder))));
    }
    let of_name = |name: &String| {
        let config = RecordConfig::of_extension(name.as_ref(), folder)?;
        // A folder stands neither for compressed arrays nor for MNIST's files.
        let is_array = matches!(config, RecordConfig::Arrays(_));
        let is_left_out = is_array && (name.ends_with(".gz") || name.ends_with("-ubyte"));
        let is_manifest = is_packed && name == "manifest.jsonl";
        let is_beside_rows = is_hidden_in_rows(name) && is_rows(&config);
        (!is_left_out && !is_manifest && !is_beside_rows).then(|| (name.clone(), config))
    };
    let all = names.iter().filter_map(of_name);
    let (beside, mut found): (Vec<_>, Vec<_>) =
        all.partition(|(name, config)| may_be_beside_data(name, config));
    if found.is_empty() {
        found = alone(folder, beside);
    }
    let Some((_, config)) = found.first() else { return Ok(None) };
    if found.iter().all(|(name, _)| TABLE_NAMES.contains(&name.as_str())) {
        return Ok(Some(of_table(folder)));
    }
    if found.iter().any(|(_, other)| other.kind() != config.kind()) {
        return Err(several(folder, "data files of several formats", &folder.join("*.jsonl")));
    }
    let splits: BTreeMap<&str, PathBuf> = found
        .iter()
        .filter_map(|(name, _)| split_of(name, has_name("dataset_info.json")))
        .map(|(split, pattern)| (split, folder.join(pattern)))
        .collect();
    match splits.first_key_value() {
        Some((_, pattern)) if splits.len() > 1 => {
            let names: Vec<_> = splits.keys().copied().collect();
            let pattern = splits.get("train").unwrap_or(pattern);
            Err(several(folder, &format!("files of the splits {}", names.join(", ")), pattern))
        }
        // The data files in sub-folders are read too.
        _ => match splits_in(folder).next() {
            Some(split) => Err(several(folder, "data files, and folders of splits", &split)),
            None => Ok(Some(config.clone())),
        },
    }
}

/// Returns the sub-folders of `folder` that have the name of a split.
fn splits_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    SPLITS.into_iter().map(|split| folder.join(split)).filter(|folder| folder.is_dir())
}

/// Returns settings for the table in `folder` that names images or audio files.
fn of_table(folder: &Path) -> RecordConfig {
    if has(folder, is_audio) && !has(folder, is_image) {
        RecordConfig::AudioTable(AudioTableOptions::new(folder))
    } else {
        RecordConfig::ImageTable(ImageTableOptions::new(folder))
    }
}

/// Returns true if a file of this name and kind may be in a folder of other data: texts may be licences, arrays may
/// be labels, indexes may be those of archives, and a table may name audio files.
fn may_be_beside_data(name: &str, config: &RecordConfig) -> bool {
    let has_one_array = !name.ends_with(".npz") && !name.ends_with(".safetensors");
    match config {
        RecordConfig::Arrays(_) => has_one_array,
        RecordConfig::AudioFiles(_) | RecordConfig::Tokens(_) => true,
        _ => is_text(config),
    }
}

fn is_rows(config: &RecordConfig) -> bool {
    matches!(
        config,
        RecordConfig::Arrow(_)
            | RecordConfig::Csv(_)
            | RecordConfig::CsvStream(_)
            | RecordConfig::JsonLines(_)
            | RecordConfig::JsonLinesStream(_)
            | RecordConfig::Parquet(_)
    ) || is_text(config)
}

fn is_text(config: &RecordConfig) -> bool {
    matches!(config, RecordConfig::TextLines(_) | RecordConfig::TextLinesStream(_))
}

/// Chooses the data of a folder whose data files, `found`, may all be beside other data. Returns the texts if the
/// folder has nothing else, and other files if it has no folders, which could be classes of images.
fn alone(folder: &Path, found: Vec<(String, RecordConfig)>) -> Vec<(String, RecordConfig)> {
    let (texts, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, config)| is_text(config));
    let shown = || entries(folder).filter(|path| !is_hidden(path));
    match others.is_empty() {
        true if texts.len() == shown().count() => texts,
        false if !shown().any(|path| path.is_dir()) => others,
        _ => Vec::new(),
    }
}

/// True if there is such a file in `folder`, or in a folder in it.
fn has(folder: &Path, is_such: fn(&Path) -> bool) -> bool {
    entries(folder).any(|path| is_such(&path) || entries(&path).any(|path| is_such(&path)))
}

fn is_audio(path: &Path) -> bool {
    matches!(RecordConfig::of_extension(path, path), Some(RecordConfig::AudioFiles(_))) && !is_hidden(path)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_image = |extension: &str| IMAGE_EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str());
    extension.is_some_and(is_image) && !is_hidden(path)
}

/// Returns the paths in `folder`; none if it cannot be listed.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().map_while(Result::ok).map(|entry| entry.path())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn several(folder: &Path, what: &str, pattern: &Path) -> Stop {
    let (folder, pattern) = (folder.display(), pattern.display());
    Stop::InvalidArguments(format!("`{folder}` has {what}; give a pattern such as `{pattern}`"))
}

/// The name of a layout, a function that is true for its folders, and what the user can do.
type OtherLayout = (&'static str, fn(&Path) -> bool, &'static str);

/// Layouts of folders that the command does not read.
const OTHER_LAYOUTS: [OtherLayout; 12] = [
    (
        "MNIST's files",
        |folder| below(folder, |name| name.ends_with("-ubyte") || name.ends_with("-ubyte.gz")),
        "give a config with `kind = \"arrays\"` and `files = { image = \"train-images-idx3-ubyte\", label = \
         \"train-labels-idx1-ubyte\" }`",
    ),
    (
        "CIFAR's binary files",
        |folder| {
            below(folder, |name| {
                name == "data_batch_1.bin"
                    || name == "train.bin" && folder.join("fine_label_names.txt").exists()
            })
        },
        "give a config with `kind = \"arrays\"` and `path = \"data_batch_{1..5}.bin\"` (or `\"train.bin\"`)",
    ),
    (
        "CIFAR's files for Python, which are pickles",
        |folder| {
            below(folder, |name| name == "batches.meta" || name == "meta" && folder.join("train").is_file())
        },
        "they are not supported; fetch CIFAR's binary version",
    ),
    (
        "shards of MosaicML's `streaming` (MDS)",
        |folder| below(folder, |name| name.ends_with(".mds") || name.ends_with(".mds.zstd")),
        "they are not supported; write the samples to Parquet files or tar archives",
    ),
    (
        "chunks of litData",
        |folder| {
            folder.join("index.json").is_file()
                && here(folder, |name| name.starts_with("chunk-") && name.ends_with(".bin"))
        },
        "they are not supported; write the samples to Parquet files or tar archives",
    ),
    (
        "a table of Lance",
        |folder| below(folder, |name| name.ends_with(".lance")),
        "it is not supported; write its rows to Parquet files, for example those of `lance.dataset(path).to_table()`",
    ),
    (
        "an LMDB database",
        |folder| folder.join("data.mdb").is_file(),
        "it is not supported; write the samples to Parquet files or tar archives",
    ),
    (
        "a zarr store",
        |folder| below(folder, |name| [".zgroup", ".zarray", "zarr.json"].contains(&name)),
        "it is not supported; save the arrays with `numpy.savez` or safetensors",
    ),
    (
        "COCO's annotations",
        |folder| {
            entries(&folder.join("annotations")).any(|path| path.extension().is_some_and(|end| end == "json"))
        },
        "they are not supported; write a `metadata.jsonl` beside the images, with a `file_name` and the annotations in each \
         line",
    ),
    (
        "YOLO's labels",
        |folder| {
            let is_text = |path: &Path| path.extension().is_some_and(|end| end == "txt");
            folder.join("images").is_dir() && has(&folder.join("labels"), is_text)
        },
        "they are not supported; write a `metadata.jsonl` beside the images, with a `file_name` and the labels in each line",
    ),
    (
        "files of TFRecord or HDF5",
        |folder| {
            below(folder, |name| {
                name.contains(".tfrecord") || name.ends_with(".h5") || name.ends_with(".hdf5")
            })
        },
        "they are not supported; write the samples to Parquet files or tar archives",
    ),
    (
        ".json files, each of which may have one array of all rows",
        |folder| {
            here(folder, |name| name.ends_with(".json"))
                && !entries(folder).any(|path| path.is_dir() || is_image(&path))
        },
        "write each object on a line of its own, for example with `jq -c '.[]' FILE.json > FILE.jsonl`",
    ),
];

/// Returns an error if the folder `target`, in which the command found no data files, has one of [`OTHER_LAYOUTS`], or
/// data files in folders further down.
pub(crate) fn refuse_other_layouts(target: &Path) -> Result<(), Stop> {
    let shown = target.display();
    if let Some((what, _, way)) = OTHER_LAYOUTS.iter().find(|(_, is_such, _)| is_such(target)) {
        return Err(Stop::InvalidArguments(format!("`{shown}` has {what}: {way}")));
    }
    let Some(config) = further_down(target) else { return Ok(()) };
    // The folder may be that of a table with a log of its own, or have several data sets.
    let files = config.files()?;
    let Some((file, _)) = files.first() else { return Ok(()) };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let Some(end) = extension_of(&name) else { return Ok(()) };
    let pattern = target.join("**").join(format!("*{end}"));
    Err(Stop::InvalidArguments(format!(
        "`{shown}` has `{end}` files in its sub-folders only, such as `{}`; give the folder that has the data, or a pattern \
         such as `{}`",
        file.display(),
        pattern.display()
    )))
}

/// Returns settings for the data files in the folders below `target`. Prefers other files to texts, which may be notes.
/// Returns `None` if there are images, or only files that may belong to anything.
fn further_down(target: &Path) -> Option<RecordConfig> {
    let (mut left, mut searched) = (VecDeque::from([target.to_owned()]), 0);
    let mut found: Option<RecordConfig> = None;
    while searched < MAX_SEARCHED
        && let Some(folder) = left.pop_front()
    {
        searched += 1;
        let is_hidden =
            |path: &PathBuf| is_hidden_in_rows(&path.file_name().unwrap_or_default().to_string_lossy());
        let mut paths: Vec<_> = entries(&folder).filter(|path| !is_hidden(path)).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                left.push_back(path);
            } else if is_image(&path) {
                return None;
            } else if folder != target
                && found.as_ref().is_none_or(is_text)
                && let Some(config) = RecordConfig::of_extension(&path, target)
                && !matches!(config, RecordConfig::AudioFiles(_) | RecordConfig::Tokens(_))
                && (found.is_none() || !is_text(&config))
            {
                found = Some(config);
            }
        }
    }
    // There may be images in the folders that are left.
    found.filter(|_| left.is_empty())
}

/// True if there is a file or a folder with such a name in `folder`.
fn here(folder: &Path, is_such: impl Fn(&str) -> bool) -> bool {
    entries(folder).any(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_such))
}

/// The same, also in the folders in it, and in those in them.
fn below(folder: &Path, is_such: impl Fn(&str) -> bool) -> bool {
    let inside = |path: PathBuf| path.is_dir() && here(&path, &is_such);
    here(folder, &is_such) || entries(folder).any(|path| inside(path.clone()) || entries(&path).any(inside))
}

/// Returns the split in the name of a data file, and a pattern for the files of this split: `test` in
/// `test-00000-of-00002.parquet`, `train` in `train_1.csv`, and `json-train` in `json-train.arrow` of the cache of `datasets`.
fn split_of(name: &str, is_cache: bool) -> Option<(&str, String)> {
    let (stem, _) = name.split_once('.')?;
    let numbered = set_of_part(name).filter(|split| !split.is_empty());
    let first = stem.split(['-', '_', ' ']).next().filter(|word| SPLITS.contains(word));
    // In the cache of `datasets`, the name of a builder comes first: `json-train.arrow`.
    let ends_with_split = |stem: &&str| stem.rsplit_once('-').is_some_and(|(_, word)| SPLITS.contains(&word));
    let last = || Some(stem).filter(|_| is_cache && name.ends_with(".arrow")).filter(ends_with_split);
    let split = numbered.or(first).or_else(last)?;
    Some((split, format!("{split}*{}", extension_of(name)?)))
}

/// Returns the end of the name of a data file that tells its format, such as `.jsonl.gz`.
fn extension_of(name: &str) -> Option<&str> {
    let is_format =
        |end: &&str| RecordConfig::of_extension(format!("x{end}").as_ref(), Path::new("")).is_some();
    name.rmatch_indices('.').map(|(at, _)| &name[at..]).find(is_format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_splits() {
        for (name, expected) in [
            ("train-00000-of-00002.parquet", Some(("train", "train*.parquet"))),
            ("fold-1-00000-of-00002.parquet", Some(("fold-1", "fold-1*.parquet"))),
            ("fold_1_00000_of_00002.parquet", Some(("fold_1", "fold_1*.parquet"))),
            ("c4-train.00000-of-01024.jsonl.gz", Some(("c4-train", "c4-train*.jsonl.gz"))),
            ("00000-of-00002.csv", None),
            ("test.jsonl.gz", Some(("test", "test*.jsonl.gz"))),
            ("val_v1.0.csv", Some(("val", "val*.csv"))),
            ("json-test.arrow", Some(("json-test", "json-test*.arrow"))),
            ("json-test.csv", None),
            ("trainer.csv", None),
            ("part-00000.csv", None),
            ("train", None),
        ] {
            let found = split_of(name, true);
            assert_eq!(found.as_ref().map(|(split, pattern)| (*split, pattern.as_str())), expected, "{name}");
        }
    }
}
