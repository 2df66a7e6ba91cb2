//! The dataset.

use std::{
    ffi::OsString,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use loader_core::{Context, Dataset, SharedVec, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    error::{ImageFolderError, TransformError},
    scan,
    transform::{MAX_FILE_BYTES, Pixel, Transform},
};

/// A dataset of images in one sub-folder a class: torchvision's `ImageFolder`. A sample is `(image, label)`: the image a
/// `Tensor<P>` of shape `[3, height, width]` (red, green, blue), the label the class folder's number as `u32`. `P` is `f32` with
/// pixels from 0 to 1 (before normalisation) or `u8` with pixels from 0 to 255. A batch is
/// `(Tensor<P>` `[B, 3, height, width]`, `Tensor<u32>` `[B])`.
///
/// Without a [`transform`](Self::transform) images keep their size, so they form a batch only where all have the same.
///
/// # Which files
/// Class folders are the sub-folders of the root, numbered in the order of their names. Their images are the
/// files named `.jpg`, `.jpeg` or `.png` (in upper or lower case) in them and in the folders inside them. The
/// order is torchvision's: class by class; in a class, folders by path; in a folder, files by name; all
/// compared bytewise. Names need not be Unicode. Symbolic links are followed. Unlike in torchvision, names
/// that start with a dot are skipped, and so is a link to a folder that contains it: its images have already
/// been listed under a shorter path, while torchvision lists them about 40 times. The list of files lies in
/// shared memory once, however many workers there are.
///
/// # How they are read
/// JPEG (baseline and progressive; grey, colour, CMYK) or PNG (all colour types and depths), told apart by content, not by name.
/// Grey images get three equal channels; of 16 bits a channel the upper 8 remain; transparency is dropped, not blended; of an
/// animation the first picture is taken. EXIF orientation, colour profiles and gamma are ignored, as torchvision's default loader
/// ignores them.
///
/// Of a baseline JPEG (grey, or YCbCr with chroma of full or half size: nearly all photographs) only what the transform shows is
/// decoded to pixels, the same as if all were.
///
/// # Damaged files
/// A JPEG fails when a table is missing, a code is invalid, a scan has fewer coded pixels than the header
/// says, or the end marker is missing. All coded pixels are read for this, so a damaged file fails with any
/// crop. Two kinds of damage are not noticed: flipped bits that give other valid codes, and missing whole
/// scans at the end of a progressive JPEG, which the standard allows and which cost detail. More coded pixels
/// than needed are not an error. Every part of a PNG has a checksum.
///
/// Images may have up to [`MAX_SIDE`](crate::MAX_SIDE) pixels a side and [`MAX_PIXELS`](crate::MAX_PIXELS) in all. Each thread
/// that loads keeps its buffers for the next image (three bytes a pixel, up to 64 MiB each). A file may have up to
/// [`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES) bytes ([`max_file_bytes`](Self::max_file_bytes)) and must be a regular file: a named
/// pipe or a device fails at once. A file that is not an image is not read beyond its first bytes.
///
/// # Examples
/// ```
/// use loader_core::{Context, Dataset};
/// use loader_data::{ImageFolder, Transform};
///
/// let photos = ImageFolder::open("photos")?.transform(Transform::standard_eval(224))?;
/// assert_eq!(photos.len(), 9);
/// assert_eq!(photos.classes()[2], "space");
/// assert_eq!(photos.label(3), Some(2));
/// assert!(photos.path(3).unwrap().ends_with("photos/space/hubble_deep_field.jpg"));
///
/// let (image, label) = photos.get(3, &mut Context::new(0))?;
/// assert_eq!((image.shape(), label), ([3, 224, 224].as_slice(), 2));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ImageFolder<P = f32> {
    // Not `PathBuf` and `String`: serde refuses paths that are not Unicode.
    root: OsString,
    classes: Vec<String>,
    files: SharedVec<(OsString, u32)>,
    /// Hash of the listing, for the fingerprint.
    listing: u64,
    transform: Transform,
    max_file_bytes: u64,
    pixel: PhantomData<fn() -> P>,
}

impl ImageFolder<f32> {
    /// Lists the images under `path`, to be loaded as `f32` from 0 to 1. Reads no image yet.
    ///
    /// # Errors
    /// [`ImageFolderError`] when the folder is missing or cannot be listed, has no class folders, or has class folders without
    /// images.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageFolderError> {
        Self::list(path.as_ref())
    }
}

impl ImageFolder<u8> {
    /// As [`open`](ImageFolder::open), with pixels kept as `u8` from 0 to 255: a batch is a quarter of the size, and the
    /// training step converts and normalises it, usually on the accelerator.
    ///
    /// # Errors
    /// As [`open`](ImageFolder::open).
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Context, Dataset};
    /// use loader_data::{ImageFolder, Transform};
    ///
    /// let transform = Transform::new().random_resized_crop(160).random_horizontal_flip(0.5);
    /// let photos = ImageFolder::open_u8("photos")?.transform(transform)?;
    /// let (image, _) = photos.get(0, &mut Context::new(7))?;
    /// let pixels: &[u8] = image.as_slice();
    /// assert_eq!(pixels.len(), 3 * 160 * 160);
    /// # anyhow::Ok(())
    /// ```
    pub fn open_u8(path: impl AsRef<Path>) -> Result<Self, ImageFolderError> {
        Self::list(path.as_ref())
    }
}

impl<P: Pixel> ImageFolder<P> {
    fn list(path: &Path) -> Result<Self, ImageFolderError> {
        let listing = scan::list(path)?;
        let hash = listing.hash();
        // Absolute, so that the program may change its directory before workers start.
        let root = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let files = SharedVec::new(listing.files).map_err(ImageFolderError::Memory)?;
        let transform = Transform::default();
        Ok(Self {
            root: root.into_os_string(),
            classes: listing.classes,
            files,
            listing: hash,
            transform,
            max_file_bytes: MAX_FILE_BYTES,
            pixel: PhantomData,
        })
    }

    /// Sets what is done with each image, in place of what was set before.
    ///
    /// # Errors
    /// [`TransformError`] when a value is out of bounds, or the pixels are `u8` and the transform normalises.
    pub fn transform(mut self, transform: Transform) -> Result<Self, TransformError> {
        transform.validate_for::<P>()?;
        self.transform = transform;
        Ok(self)
    }

    /// Sets the max size of an image file in bytes: [`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES), 256 MiB, by
    /// default. A larger file fails before it is read.
    #[must_use]
    pub fn max_file_bytes(mut self, bytes: u64) -> Self {
        self.max_file_bytes = bytes;
        self
    }

    /// Names of the classes; a label is a place in this list. Bytes of a name that are not Unicode are replaced (U+FFFD).
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Label of sample `index`, without loading its image; `None` when there is no such sample.
    pub fn label(&self, index: usize) -> Option<u32> {
        self.files.get(index).ok().map(|(_, label)| label)
    }

    /// Labels of all samples in order, without loading an image: what a weighted sampler is made from.
    pub fn labels(&self) -> impl Iterator<Item = u32> {
        (0..self.files.len()).map_while(|index| self.label(index))
    }

    /// File of sample `index`; `None` when there is no such sample.
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        self.files.get(index).ok().map(|(file, _)| Path::new(&self.root).join(file))
    }
}

impl<P: Pixel> Dataset for ImageFolder<P> {
    type Sample = (Tensor<P>, u32);

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Self::Sample> {
        let (file, label) = self.files.get(index)?;
        let path = Path::new(&self.root).join(file);
        let image = self.transform.load_up_to(self.max_file_bytes, &path, cx.rng())?;
        Ok((image, label))
    }

    /// A hash of the class names and of each file's path and class: a state is refused when a file was added, removed or renamed. Neither the
    /// folder's own path nor what is in the files is part of it.
    fn fingerprint(&self) -> String {
        format!("image_folder(#{:016x})", self.listing)
    }

    fn setup(&mut self, _cx: &mut Context) -> anyhow::Result<()> {
        // The bytes may come from elsewhere than from `transform`.
        Ok(self.transform.validate_for::<P>()?)
    }
}
