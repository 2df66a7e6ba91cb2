//! Decides which files form a sample, and which samples form an archive.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use loader_core::sampler::{Epoch, RandomSampler, Sampler};
use xxhash_rust::xxh3::Xxh3;

use super::rows;
use super::{
    PackError, PackFormat,
    manifest::{Header, MAX_SHARDS},
    member::{Content, Member},
};
use crate::{
    error::{DataError, DataProblem},
    formats::tar_shards::name::{is_metadata, key_and_field},
    source::{DataFile, Files, Location, StoreOptions},
};

/// Extensions of images, of which each is a sample if the files are in one folder per class.
const IMAGES: [&str; 3] = ["jpg", "jpeg", "png"];

/// Options of packing.
#[derive(Debug, Clone)]
pub struct PackOptions {
    /// Maximum number of bytes of an archive, unless one sample needs more. Default: 256 MiB.
    pub shard_bytes: u64,
    /// Seed of a random order of the samples. Default: they are sorted by name.
    pub shuffle: Option<u64>,
    /// Format of the archives. Default: tar.
    pub format: PackFormat,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self { shard_bytes: 256 << 20, shuffle: None, format: PackFormat::Tar }
    }
}

/// What is packed: samples in their order, and archives.
#[derive(Debug)]
pub struct PackPlan {
    pub(super) source: PathBuf,
    pub(super) samples: Vec<Vec<Member>>,
    /// The samples of each archive.
    pub(super) shards: Vec<Range<usize>>,
    pub(super) header: Header,
    pub(super) format: PackFormat,
    /// The fields of all samples, which are the columns of Parquet. Empty for tar.
    pub(super) columns: Vec<String>,
}

impl PackPlan {
    /// Lists the files in the folder `source` and its sub-folders, without those whose names begin with a
    /// dot, and reads none of them.
    ///
    /// If all files in sub-folders are images (`.jpg`, `.jpeg`, `.png`), each is a sample with the fields
    /// `jpg` or `png`, and `cls`: the number of its first folder among all in alphabetic order; files
    /// directly in `source` are left out. Otherwise files with the same path up to the first dot in their
    /// name are a sample, with what follows the dot as the field.
    ///
    /// # Errors
    /// Returns an error if there are no files, if a class has no images, if readers of archives would skip a file
    /// because of its name, or if the samples need more than a million archives. For Parquet, also returns an error if
    /// there are more than 1000 fields, or if a file has more than 1 GiB.
    pub fn new(source: impl AsRef<Path>, options: &PackOptions) -> Result<Self, PackError> {
        let source = source.as_ref();
        if !source.is_dir() {
            return Err(PackError::NothingToPack(source.to_owned()));
        }
        let listed =
            Files::list_with([source], &[""], &StoreOptions::current()).map_err(|error| {
                match error.problem {
                    DataProblem::NoFiles { .. } => PackError::NothingToPack(source.to_owned()),
                    _ => error.into(),
                }
            })?;
        let files: Vec<_> = (0..listed.len()).map(|number| listed.get(number)).collect();
        let named = files.into_iter().map(|file| Ok((relative_name(source, &file)?, file)));
        let named = named.collect::<Result<Vec<_>, PackError>>()?;
        let (mut samples, classes) = match classes_of(&named) {
            Some(classes) => {
                check_for_empty_classes(source, &classes)?;
                (images(named, &classes), classes)
            }
            None => (grouped(named)?, Vec::new()),
        };
        if let Some(seed) = options.shuffle {
            let mut taken: Vec<_> = samples.into_iter().map(Some).collect();
            let order = RandomSampler::new(taken.len()).indices(Epoch::new(seed, 0));
            samples = order.filter_map(|index| taken[index].take()).collect();
        }
        let shards = cut(&samples, options.shard_bytes);
        if shards.len() > MAX_SHARDS {
            return Err(PackError::TooManyArchives { found: shards.len(), max: MAX_SHARDS });
        }
        let header = Header {
            format: options.format.in_manifest().to_owned(),
            shard_bytes: options.shard_bytes,
            shuffle: options.shuffle,
            shards: shards.len(),
            classes,
        };
        let columns = match options.format {
            PackFormat::Tar => Vec::new(),
            PackFormat::Parquet => rows::columns(&samples)?,
        };
        Ok(Self { source: source.to_owned(), samples, shards, header, format: options.format, columns })
    }

    /// Names of the classes, by their numbers in the fields `cls`. Empty if the files are not images in class folders.
    pub fn classes(&self) -> &[String] {
        &self.header.classes
    }

    /// Number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.samples.iter().flatten().map(Member::len).sum()
    }

    /// Returns the samples of an archive.
    pub(super) fn samples_of(&self, shard: usize) -> &[Vec<Member>] {
        &self.samples[self.shards[shard].clone()]
    }

    /// Returns a hash of the paths in the source, sizes and modification times of the files in an archive, and of its
    /// columns.
    pub(super) fn source_hash(&self, shard: usize) -> String {
        let mut hash = Xxh3::new();
        for column in &self.columns {
            hash.update(&(column.len() as u64).to_le_bytes());
            hash.update(column.as_bytes());
        }
        for member in self.samples_of(shard).iter().flatten() {
            // The name of an image in an archive is a number, which another image may get.
            let (path, version) = match &member.content {
                Content::File(file) => (file.location.as_path(), &file.version),
                Content::Text(text) => (Path::new(""), text),
            };
            let path = path.strip_prefix(&self.source).unwrap_or(path).as_os_str().as_encoded_bytes();
            for part in [member.name.as_bytes(), path, version.as_bytes()] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
            hash.update(&member.len().to_le_bytes());
        }
        format!("{:032x}", hash.digest128())
    }
}

fn relative_name(source: &Path, file: &DataFile) -> Result<String, PackError> {
    let path = file.location.as_path();
    let relative = path.strip_prefix(source).unwrap_or(path).to_str();
    relative.map(str::to_owned).ok_or_else(|| PackError::Name(path.to_owned()))
}

/// Returns the names of the classes if there are sub-folders, and all files in them are images.
fn classes_of(files: &[(String, DataFile)]) -> Option<Vec<String>> {
    let class = |(name, _): &(String, DataFile)| {
        let (class, _) = name.split_once('/')?;
        Some(image_field(name).map(|_| class.to_owned()))
    };
    let classes = files.iter().filter_map(class).collect::<Option<BTreeSet<_>>>()?;
    (!classes.is_empty()).then(|| classes.into_iter().collect())
}

/// Fails if a folder in `source` is none of the `classes`, because the numbers of the others would differ from those
/// in another part of the dataset.
fn check_for_empty_classes(source: &Path, classes: &[String]) -> Result<(), PackError> {
    let unreadable = |error: io::Error| DataError::new(Location::new(source), error);
    for entry in fs::read_dir(source).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') && !classes.iter().any(|class| *class == name) && path.is_dir() {
            return Err(PackError::EmptyClass(path));
        }
    }
    Ok(())
}

/// Returns the field of an image.
fn image_field(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let known = IMAGES.into_iter().find(|known| known.eq_ignore_ascii_case(extension))?;
    Some(if known == "png" { "png" } else { "jpg" })
}

/// Makes a sample of each image. The keys are numbers, because names may have dots or differ only in the
/// extension.
fn images(files: Vec<(String, DataFile)>, classes: &[String]) -> Vec<Vec<Member>> {
    let sample = |(number, (name, file)): (usize, (String, DataFile))| {
        let class = name
            .split_once('/')
            .and_then(|(class, _)| classes.binary_search_by(|known| known[..].cmp(class)).ok());
        let member = |field: &str, content| Member { name: format!("{number:09}.{field}"), content };
        let class = Content::Text(class.unwrap_or_default().to_string());
        vec![member(image_field(&name).unwrap_or_default(), Content::File(file)), member("cls", class)]
    };
    let in_classes = files.into_iter().filter(|(name, _)| name.contains('/'));
    in_classes.enumerate().map(sample).collect()
}

/// Makes samples of the files whose names have the same key.
fn grouped(files: Vec<(String, DataFile)>) -> Result<Vec<Vec<Member>>, PackError> {
    let mut samples = BTreeMap::<Vec<u8>, BTreeMap<Vec<u8>, Member>>::new();
    for (name, file) in files {
        let path = file.location.as_path().to_owned();
        let (key, field) = match key_and_field(name.as_bytes()) {
            Some((key, field)) if !is_metadata(name.as_bytes()) => (key.to_vec(), field.to_ascii_lowercase()),
            _ => return Err(PackError::Name(path)),
        };
        let member = Member { name, content: Content::File(file) };
        if samples.entry(key).or_default().insert(field, member).is_some() {
            return Err(PackError::DuplicateField(path));
        }
    }
    Ok(samples.into_values().map(|members| members.into_values().collect()).collect())
}

/// Cuts the samples into archives of at most `max` bytes, but at least one sample.
fn cut(samples: &[Vec<Member>], max: u64) -> Vec<Range<usize>> {
    const END: u64 = 1024;
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, END);
    for (number, sample) in samples.iter().enumerate() {
        let more: u64 = sample.iter().map(Member::packed_len).sum();
        if number > start && bytes.saturating_add(more) > max {
            shards.push(start..number);
            (start, bytes) = (number, END);
        }
        bytes = bytes.saturating_add(more);
    }
    shards.push(start..samples.len());
    shards
}
