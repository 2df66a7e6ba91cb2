//! Image folders on servers.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use loader_core::{SampleContext, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    error::ImageFolderError,
    scan::{AUDIO_EXTENSIONS, Listing, has_extension, is_image, without_images},
};
use crate::{
    error::{DataError, DataProblem, Result},
    images::{ImageError, Pixel, Transform},
    parallel,
    source::{Files, StoreOptions, without_credentials},
};

/// The files of the samples, in their order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Remote(Files);

impl Remote {
    /// Lists the images of the folder at a URL. Returns the URL with a slash at its end, and the images in the order of
    /// the listing.
    pub(super) fn list(url: &Path) -> Result<(PathBuf, Listing, Self), ImageFolderError> {
        let mut root = url.to_string_lossy().into_owned();
        if !root.ends_with('/') {
            root.push('/');
        }
        let shown = PathBuf::from(without_credentials(&root));
        let not_one_folder = || {
            let reason =
                "an image folder is one folder, and its URL has neither braces nor wildcards".to_owned();
            DataError::new(shown.display(), DataProblem::Pattern(reason))
        };
        if root.contains(['{', '*', '?', '[']) {
            return Err(not_one_folder().into());
        }
        // Extensions of images may be in upper case, and a class without images is an error.
        let files = Files::list_with([&root], &[""], &StoreOptions::current())?;
        let relative = |number: usize| {
            let location = files.get(number).location;
            let path = location.as_path().to_string_lossy();
            path.strip_prefix(&root).map(str::to_owned).ok_or_else(not_one_folder)
        };
        let paths: Vec<String> = (0..files.len()).map(relative).collect::<Result<_>>()?;
        let (listing, numbers) = of_paths(&shown, &paths)?;
        let files = files.ordered(&numbers)?;
        Ok((root.into(), listing, Self(files)))
    }

    /// Returns the number of bytes of the file of sample `index`; `None` if there is no such sample.
    pub(super) fn bytes(&self, index: usize) -> Option<u64> {
        (index < self.0.len()).then(|| self.0.get(index).len)
    }

    /// Reads the file of sample `index`.
    pub(super) fn read(&self, index: usize, max_bytes: u64) -> Result<Vec<u8>> {
        self.0.read(index, max_bytes, "max_file_bytes")
    }

    /// Reads the files of the samples `indices` at the same time.
    pub(super) fn read_many(&self, indices: &[usize], max_bytes: u64) -> Result<Vec<Vec<u8>>> {
        // Waiting for a server takes longer than starting a thread.
        parallel::read(indices.len(), |number| self.read(indices[number], max_bytes))
    }

    /// Decodes the content of the file of sample `index`.
    pub(super) fn decode<P: Pixel>(
        &self,
        transform: &Transform,
        index: usize,
        content: &[u8],
        cx: &mut SampleContext,
    ) -> Result<Tensor<P>, ImageError> {
        transform.decode(content, cx.rng()).map_err(|problem| {
            let path = PathBuf::from(&*self.0.get(index).location.shown());
            ImageError { path, problem }
        })
    }
}

/// Orders files on a server as [`scan::list`](super::scan::list) orders local ones. Each file has its path relative to
/// `root`, with `/`. Also returns the number of each image among the files.
fn of_paths(root: &Path, paths: &[String]) -> Result<(Listing, Vec<usize>), ImageFolderError> {
    let path = || root.to_owned();
    let (mut images, mut classes, mut example) = (Vec::new(), BTreeMap::new(), None);
    for (number, file) in paths.iter().enumerate() {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let class = folder.split('/').next().unwrap_or_default();
        let is_image = is_image(OsStr::new(name));
        if folder.is_empty() {
            example = example.or_else(|| is_image.then(|| name.to_owned()));
            continue;
        }
        *classes.entry(class).or_insert(false) |= is_image;
        if is_image {
            images.push((class, folder, name, number));
        }
    }
    if classes.is_empty() {
        return Err(match example {
            Some(example) => ImageFolderError::ImagesWithoutClass { path: path(), example },
            None => ImageFolderError::NoClasses { path: path() },
        });
    }
    let empty: Vec<_> = classes.iter().filter(|(_, has_images)| !**has_images).collect();
    if !empty.is_empty() {
        let classes = empty.into_iter().map(|(class, _)| (*class).to_owned()).collect();
        let is_audio = |file: &&String| file.contains('/') && has_extension(file.as_ref(), AUDIO_EXTENSIONS);
        let example = if images.is_empty() { paths.iter().find(is_audio).cloned() } else { None };
        return Err(without_images(path(), classes, example));
    }
    images.sort_unstable();
    // Each class has images, so the number of the chunk is that of the class.
    let files = images
        .chunk_by(|one, other| one.0 == other.0)
        .zip(0u32..)
        .flat_map(|(of_class, label)| of_class.iter().map(move |image| (image, label)))
        .map(|(&(_, folder, name, _), label)| (OsString::from(format!("{folder}/{name}")), label))
        .collect();
    let numbers = images.iter().map(|&(.., number)| number).collect();
    Ok((Listing { classes: classes.into_keys().map(str::to_owned).collect(), files }, numbers))
}
