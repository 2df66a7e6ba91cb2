//! The dataset [`ImageFolder`].

use std::{
    ffi::OsString,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use loader_core::{Dataset, SampleContext, SharedVec, Tensor, internal::get_one_by_one};
use serde::{Deserialize, Serialize};

use super::{
    error::ImageFolderError,
    remote::Remote,
    scan::{self, Listing},
};
use crate::images::{MAX_FILE_BYTES, Pixel, Transform, TransformError};

/// A dataset of images in one sub-folder per class, like torchvision's `ImageFolder`.
///
/// A sample is `(image, label)`: the image is a `Tensor<P>` of shape `[3, height, width]` (red, green, blue),
/// the label is the number of its class folder as `u32`. `P` is `f32` with pixels from 0 to 1 (before
/// normalisation) or `u8` with pixels from 0 to 255. A batch is a `Tensor<P>` of shape
/// `[B, 3, height, width]` and a `Tensor<u32>` of shape `[B]`. Without a [`transform`](Self::transform)
/// images keep their size, so the images of a batch must have the same size.
///
/// # Which files it lists
/// The class folders are the sub-folders of the root, numbered in the order of their names. The images of a
/// class are the files named `.jpg`, `.jpeg` or `.png` (in upper or lower case) in its folder and in all
/// folders inside it; with the feature `more-images` also `.bmp`, `.pgm`, `.ppm`, `.tif`, `.tiff` and
/// `.webp`, as in torchvision. The order is that of torchvision: class by class; within a class, folders by
/// path; within a folder, files by name; all compared bytewise. Names need not be Unicode. Symbolic links are
/// followed. Unlike torchvision, the dataset skips names that start with a dot, and links to a folder that
/// contains the link: their images have already been listed under a shorter path (torchvision lists them
/// about 40 times). The list of files is in shared memory, once for all workers.
///
/// # On a server
/// With the feature `cloud`, the folder may be on S3, Google Cloud Storage or Azure, with the options of the
/// [scope](crate::StoreOptions::scope). The order is that of a local folder. An image that was replaced since the
/// folder was opened is an error. A worker reads up to 16 images of a batch at the same time.
///
/// # How it reads them
/// A file may be a JPEG (baseline or progressive; grey, colour or CMYK) or a PNG (any colour type and depth).
/// With the feature `more-images` it may also be a BMP, GIF, PBM, PGM, PPM, TIFF or WebP. Its content
/// decides, not its name.
///
/// The pixels are those of Pillow's `convert("RGB")`. Grey images get three equal channels. Transparency is
/// dropped, not blended. Of an animation the first picture is used. Of channels with 16 bits the upper 8 bits
/// are used, but in a grey image with 16 bits everything above 255 becomes white: such images (depth, X-rays)
/// need a reader of their own. Colour profiles and gamma are ignored. EXIF orientation is ignored too, as
/// torchvision's default loader does, unless [`Transform::exif_orientation`] is set; that of a TIFF is always
/// applied, as in Pillow.
///
/// TIFF files with channels in separate planes, with floats, compressed as fax, with the bits of a byte in reverse order,
/// or with more than one sample besides the colours are refused.
///
/// Of a baseline JPEG (grey, or YCbCr with chroma of full or half size: nearly all photographs) only the part
/// that the transform needs is decoded to pixels. These are the same pixels as if the whole image was
/// decoded.
///
/// # Damaged files
/// A JPEG fails if a table is missing, a code is invalid, a scan has fewer coded pixels than the header says,
/// or the end marker is missing. All coded pixels are read to check this, so a damaged file fails with any
/// crop. Two kinds of damage are not noticed: flipped bits that give other valid codes, and missing whole
/// scans at the end of a progressive JPEG, which the standard allows and which cost detail. Surplus coded
/// pixels are not an error. Every part of a PNG has a checksum. The other types have none, so that a damaged
/// file that is not truncated may give wrong pixels.
///
/// # Limits
/// An image may have up to [`MAX_SIDE`](crate::MAX_SIDE) pixels per side and
/// [`MAX_PIXELS`](crate::MAX_PIXELS) in total. A file may have up to [`MAX_FILE_BYTES`] bytes, unless
/// [`max_file_bytes`](Self::max_file_bytes) sets another limit. It must be a regular file: a named pipe or a
/// device fails at once. Of a file that is not an image only the first bytes are read.
///
/// Each thread that loads images keeps its buffers for the next image (three bytes per pixel, up to 64 MiB
/// each).
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{ImageFolder, Transform};
///
/// let photos = ImageFolder::open("photos")?.transform(Transform::standard_eval(224))?;
/// assert_eq!(photos.len(), 9);
/// assert_eq!(photos.classes()[2], "space");
/// assert_eq!(photos.label(3), Some(2));
/// assert!(photos.path(3).unwrap().ends_with("photos/space/hubble_deep_field.jpg"));
///
/// let (image, label) = photos.get(3, &mut SampleContext::new(0))?;
/// assert_eq!((image.shape(), label), ([3, 224, 224].as_slice(), 2));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ImageFolder<P = f32> {
    // Paths are `OsString`, because serde refuses a `PathBuf` that is not Unicode.
    root: OsString,
    classes: Vec<String>,
    files: SharedVec<(OsString, u32)>,
    /// Hash of the listing, for the fingerprint.
    listing: u64,
    transform: Transform,
    max_file_bytes: u64,
    /// The files in the same order, if they are on a server.
    remote: Option<Remote>,
    pixel: PhantomData<fn() -> P>,
}

impl ImageFolder<f32> {
    /// Opens the folder at `path`, with pixels as `f32` from 0 to 1. Lists the files and reads none of them. With the
    /// feature `cloud`, `path` may be a URL such as `s3://bucket/train/`.
    ///
    /// # Errors
    /// Returns [`ImageFolderError`] if the folder is missing or cannot be listed, has no class folders, or
    /// has class folders without images.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageFolderError> {
        Self::list(path.as_ref())
    }
}

impl ImageFolder<u8> {
    /// Opens the folder at `path`, with pixels as `u8` from 0 to 255.
    ///
    /// A batch needs a quarter of the memory of one with `f32` pixels. The training step converts and
    /// normalises it, usually on the accelerator.
    ///
    /// # Errors
    /// Returns the errors of [`open`](ImageFolder::open).
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::{ImageFolder, Transform};
    ///
    /// let transform = Transform::new().random_resized_crop(160).random_horizontal_flip(0.5);
    /// let photos = ImageFolder::open_u8("photos")?.transform(transform)?;
    /// let (image, _) = photos.get(0, &mut SampleContext::new(7))?;
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
        if url_scheme(path).is_some() {
            let (root, listing, remote) = Remote::list(path)?;
            return Ok(Self { remote: Some(remote), ..Self::new(root, listing)? });
        }
        // An absolute path stays valid if the program changes its directory before workers start.
        let root = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::new(root, scan::list(path)?)
    }

    fn new(root: PathBuf, listing: Listing) -> Result<Self, ImageFolderError> {
        let hash = listing.hash();
        let files = SharedVec::new(listing.files).map_err(ImageFolderError::Memory)?;
        let transform = Transform::default();
        Ok(Self {
            root: root.into_os_string(),
            classes: listing.classes,
            files,
            listing: hash,
            transform,
            max_file_bytes: MAX_FILE_BYTES,
            remote: None,
            pixel: PhantomData,
        })
    }

    /// Sets the transform of the images and replaces the previous one. By default images are not transformed.
    ///
    /// # Errors
    /// Returns [`TransformError`] if a value is out of bounds, or if the transform normalises `u8` pixels.
    pub fn transform(mut self, transform: Transform) -> Result<Self, TransformError> {
        transform.validate_for::<P>()?;
        self.transform = transform;
        Ok(self)
    }

    /// Sets the maximum size of an image file in bytes. The default is [`MAX_FILE_BYTES`], 256 MiB. A larger
    /// file fails before it is read.
    #[must_use]
    pub fn max_file_bytes(mut self, bytes: u64) -> Self {
        self.max_file_bytes = bytes;
        self
    }

    /// Returns the names of the classes; a label is an index in this list. Bytes of a name that are not
    /// Unicode are replaced by U+FFFD.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the label of sample `index` without loading its image, or `None` if there is no such sample.
    pub fn label(&self, index: usize) -> Option<u32> {
        self.files.get(index).ok().map(|(_, label)| label)
    }

    /// Returns the labels of all samples in order, for example to build a weighted sampler. Loads no image.
    pub fn labels(&self) -> impl Iterator<Item = u32> {
        (0..self.files.len()).map_while(|index| self.label(index))
    }

    /// Returns the path of the file of sample `index`, or `None` if there is no such sample.
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        self.files.get(index).ok().map(|(file, _)| Path::new(&self.root).join(file))
    }

    /// Returns the number of bytes of the file of sample `index`: on a server as the server has listed it, and on disk
    /// as it is now. Returns `None` if there is no such sample or no such file.
    pub fn file_bytes(&self, index: usize) -> Option<u64> {
        if let Some(remote) = &self.remote {
            return remote.bytes(index);
        }
        self.path(index)?.metadata().ok().map(|metadata| metadata.len())
    }
}

impl<P: Pixel> Dataset for ImageFolder<P> {
    type Sample = (Tensor<P>, u32);

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let (file, label) = self.files.get(index)?;
        if let Some(remote) = &self.remote {
            let content = remote.read(index, self.max_file_bytes)?;
            return Ok((remote.decode(&self.transform, index, &content, cx)?, label));
        }
        let path = Path::new(&self.root).join(file);
        let image = self.transform.load_up_to(self.max_file_bytes, &path, cx.rng())?;
        Ok((image, label))
    }

    /// Reads images on a server at the same time. Loads local images one by one.
    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Self::Sample>> {
        if let Some(remote) = &self.remote {
            let label = |&index| anyhow::Ok(self.files.get(index)?.1);
            let labels = indices.iter().map(label).collect::<anyhow::Result<Vec<_>>>()?;
            let contents = remote.read_many(indices, self.max_file_bytes)?;
            let mut samples = Vec::with_capacity(indices.len());
            for ((&index, label), content) in indices.iter().zip(labels).zip(contents) {
                cx.set_index(index);
                samples.push((remote.decode(&self.transform, index, &content, cx)?, label));
            }
            return Ok(samples);
        }
        get_one_by_one(self, indices, cx)
    }

    /// Returns the numbers of files and classes, and a hash of the class names and of the path and class of each file.
    /// A loader therefore refuses a state after a file was added, removed or renamed. The path of the folder itself
    /// and the contents of the files are not part of the hash.
    fn fingerprint(&self) -> String {
        let (files, classes) = (self.files.len(), self.classes.len());
        format!("image_folder({files} files in {classes} classes #{:016x})", self.listing)
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        // A deserialised dataset did not necessarily get its transform from `Self::transform`.
        Ok(self.transform.validate_for::<P>()?)
    }
}

/// Returns the scheme if `path` is a URL. `file://` is not one.
pub(crate) fn url_scheme(path: &Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    (!scheme.is_empty() && scheme != "file" && scheme.bytes().all(is_scheme)).then_some(scheme)
}
