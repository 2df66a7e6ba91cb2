//! Takes the place of `remote` in a program without the feature `cloud`.

use std::path::{Path, PathBuf};

use loader_core::{SampleContext, Tensor};
use serde::{Deserialize, Serialize};

use super::{error::ImageFolderError, folder::url_scheme, scan::Listing};
use crate::images::{ImageError, Pixel, Transform};

/// Has no value, because a program without the feature `cloud` opens no file on a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Remote {}

impl Remote {
    /// Returns an error that names the feature.
    pub(super) fn list(url: &Path) -> Result<(PathBuf, Listing, Self), ImageFolderError> {
        let scheme = url_scheme(url).unwrap_or_default().to_owned();
        Err(ImageFolderError::NeedsCloud { scheme })
    }

    pub(super) fn bytes(&self, _: usize) -> Option<u64> {
        match *self {}
    }

    pub(super) fn read(&self, _: usize, _: u64) -> anyhow::Result<Vec<u8>> {
        match *self {}
    }

    pub(super) fn read_many(&self, _: &[usize], _: u64) -> anyhow::Result<Vec<Vec<u8>>> {
        match *self {}
    }

    pub(super) fn decode<P: Pixel>(
        &self,
        _: &Transform,
        _: usize,
        _: &[u8],
        _: &mut SampleContext,
    ) -> Result<Tensor<P>, ImageError> {
        match *self {}
    }
}
