//! Lists the images of a folder in torchvision's order.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use super::error::ImageFolderError;
use crate::images::IMAGE_EXTENSIONS;

/// Extensions of audio files, for an error, also without the feature `audio`.
pub(super) const AUDIO_EXTENSIONS: &[&str] = &["flac", "mp3", "oga", "ogg", "wav"];

/// The classes and images of a folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Names of the class folders, sorted. Bytes that are not Unicode are replaced by U+FFFD.
    pub(super) classes: Vec<String>,
    /// Path of each image, relative to the root and with `/`, and the number of its class.
    pub(super) files: Vec<(OsString, u32)>,
}

impl Listing {
    /// Returns a hash of the class names and of the path and class of each image, in order. The root is not
    /// part of the hash, so that the folder can be moved.
    pub(super) fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut text = |text: &[u8]| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        text(&(self.classes.len() as u64).to_le_bytes());
        self.classes.iter().for_each(|class| text(class.as_bytes()));
        for (path, label) in &self.files {
            text(path.as_encoded_bytes());
            text(&label.to_le_bytes());
        }
        hash.digest()
    }
}

/// Lists the images under `root`: class by class; within a class, folders by path; within a folder, files by
/// name; all compared bytewise. A link to a folder that contains the link is skipped, because each image
/// behind it also has a shorter path.
pub(super) fn list(root: &Path) -> Result<Listing, ImageFolderError> {
    let path = || root.to_owned();
    match fs::metadata(root) {
        Ok(metadata) if !metadata.is_dir() => return Err(ImageFolderError::NotAFolder { path: path() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ImageFolderError::NotFound { path: path() });
        }
        _ => {}
    }
    let top = Folder::read(root)?;
    if top.folders.is_empty() {
        return Err(match top.images.into_iter().next() {
            Some(example) => {
                let example = example.to_string_lossy().into_owned();
                ImageFolderError::ImagesWithoutClass { path: path(), example }
            }
            None => ImageFolderError::NoClasses { path: path() },
        });
    }

    let mut listing = Listing::default();
    let mut empty = Vec::new();
    for class in top.folders {
        let name = class.to_string_lossy().into_owned();
        let mut folders = Vec::new();
        walk(root, class, &mut vec![identity(root)?], &mut folders)?;
        if folders.is_empty() {
            continue;
        }
        folders.sort();
        let label = u32::try_from(listing.classes.len()).unwrap_or(u32::MAX);
        let before = listing.files.len();
        for (folder, images) in folders {
            listing.files.extend(images.into_iter().map(|image| (joined(&folder, &image), label)));
        }
        if listing.files.len() == before {
            empty.push(name.clone());
        }
        listing.classes.push(name);
    }
    if listing.classes.is_empty() {
        return Err(ImageFolderError::NoClasses { path: path() });
    }
    if empty.is_empty() {
        return Ok(listing);
    }
    let example = if listing.files.is_empty() { audio_file(root, &empty) } else { None };
    Err(without_images(path(), empty, example))
}

/// Returns the error of classes without images. `example` is an audio file in one of them, if no class has images.
pub(super) fn without_images(
    path: PathBuf,
    classes: Vec<String>,
    example: Option<String>,
) -> ImageFolderError {
    match example {
        Some(example) => ImageFolderError::AudioInClasses { path, classes, example },
        None => ImageFolderError::EmptyClasses { path, classes },
    }
}

/// Returns the path in `root` of an audio file directly in one of the `classes`.
fn audio_file(root: &Path, classes: &[String]) -> Option<String> {
    classes.iter().find_map(|class| {
        let names = fs::read_dir(root.join(class)).ok()?.map_while(Result::ok).map(|entry| entry.file_name());
        let name = names.filter(|name| has_extension(name, AUDIO_EXTENSIONS)).min()?;
        Some(format!("{class}/{}", name.to_string_lossy()))
    })
}

/// Adds `folder`, a path relative to `root`, and all folders inside it to `found`, each with the names of its
/// images. Adds nothing if `folder` is the same as one of the folders `above` it.
fn walk(
    root: &Path,
    folder: OsString,
    above: &mut Vec<(u64, u64)>,
    found: &mut Vec<(OsString, Vec<OsString>)>,
) -> Result<(), ImageFolderError> {
    let path = root.join(&folder);
    let identity = identity(&path)?;
    if above.contains(&identity) {
        return Ok(());
    }
    let inside = Folder::read(&path)?;
    above.push(identity);
    for name in inside.folders {
        walk(root, joined(&folder, &name), above, found)?;
    }
    above.pop();
    found.push((folder, inside.images));
    Ok(())
}

/// Joins two parts of a path. `OsString`s are compared bytewise, but `PathBuf`s name by name.
fn joined(folder: &OsStr, name: &OsStr) -> OsString {
    [folder, name].join(OsStr::new("/"))
}

/// Returns the device and inode of a folder, which are the same under every path of the folder.
fn identity(folder: &Path) -> Result<(u64, u64), ImageFolderError> {
    let metadata = fs::metadata(folder).map_err(unreadable(folder))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The names of the sub-folders and images in one folder, sorted, without names that start with a dot.
struct Folder {
    folders: Vec<OsString>,
    images: Vec<OsString>,
}

impl Folder {
    fn read(path: &Path) -> Result<Self, ImageFolderError> {
        let mut folder = Self { folders: Vec::new(), images: Vec::new() };
        for entry in fs::read_dir(path).map_err(unreadable(path))? {
            let entry = entry.map_err(unreadable(path))?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let names = if is_folder(&entry).map_err(unreadable(path))? {
                &mut folder.folders
            } else if is_image(&name) {
                &mut folder.images
            } else {
                continue;
            };
            names.push(name);
        }
        folder.folders.sort();
        folder.images.sort();
        Ok(folder)
    }
}

/// True if the entry is a folder or a link to one. A broken link counts as a file, which fails to load.
fn is_folder(entry: &fs::DirEntry) -> io::Result<bool> {
    let kind = entry.file_type()?;
    Ok(kind.is_dir()
        || kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir()))
}

pub(super) fn is_image(name: &OsStr) -> bool {
    has_extension(name, IMAGE_EXTENSIONS)
}

/// True if the extension of `name` is one of `extensions`, in lower or upper case.
pub(super) fn has_extension(name: &OsStr, extensions: &[&str]) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extensions.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> ImageFolderError {
    let path: PathBuf = path.to_owned();
    move |error| ImageFolderError::Unreadable { path, error }
}
