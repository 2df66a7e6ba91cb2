//! Image folders on servers.

use std::path::{Path, PathBuf};

use loader_core::{SampleContext, Tensor};

use super::{
    error::ImageFolderError,
    scan::{self, Listing},
};
use crate::{
    error::{DataError, DataProblem, Result},
    images::{ImageError, Pixel, Transform},
    parallel,
    source::{Files, without_credentials},
};

/// Lists the images of the folder at a URL. Returns the URL with a slash at its end, and the images in the order of the
/// listing.
pub(super) fn list(url: &Path) -> Result<(PathBuf, Listing, Files), ImageFolderError> {
    let mut root = url.to_string_lossy().into_owned();
    if !root.ends_with('/') {
        root.push('/');
    }
    let shown = PathBuf::from(without_credentials(&root));
    let not_one_folder = || {
        let reason = "an image folder is one folder, and its URL has neither braces nor wildcards".to_owned();
        DataError::new(shown.display(), DataProblem::Pattern(reason))
    };
    if root.contains(['{', '*', '?', '[']) {
        return Err(not_one_folder().into());
    }
    // Extensions of images may be in upper case, and a class without images is an error.
    let files = Files::list([&root], &[""])?;
    let relative = |number: usize| {
        let location = files.get(number).location;
        let path = location.as_path().to_string_lossy();
        path.strip_prefix(&root).map(str::to_owned).ok_or_else(not_one_folder)
    };
    let paths: Vec<String> = (0..files.len()).map(relative).collect::<Result<_>>()?;
    let (listing, numbers) = scan::of_paths(&shown, &paths)?;
    let files = files.ordered(&numbers)?;
    Ok((root.into(), listing, files))
}

/// Reads the file of sample `index`.
pub(super) fn read(files: &Files, index: usize, max_bytes: u64) -> Result<Vec<u8>> {
    files.read(index, max_bytes, "max_file_bytes")
}

/// Reads the files of the samples `indices` at the same time.
pub(super) fn read_many(files: &Files, indices: &[usize], max_bytes: u64) -> Result<Vec<Vec<u8>>> {
    // Waiting for a server takes longer than starting a thread.
    parallel::read(indices.len(), |number| read(files, indices[number], max_bytes))
}

/// Decodes the content of the file of sample `index`.
pub(super) fn decode<P: Pixel>(
    transform: &Transform,
    files: &Files,
    index: usize,
    content: &[u8],
    cx: &mut SampleContext,
) -> Result<Tensor<P>, ImageError> {
    transform.decode(content, cx.rng()).map_err(|problem| {
        let path = PathBuf::from(&*files.get(index).location.shown());
        ImageError { path, problem }
    })
}
