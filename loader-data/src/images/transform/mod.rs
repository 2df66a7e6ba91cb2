//! Transforms: the steps between an image file and its tensor.

mod canvas;
mod drawn;
mod load;
mod pixel;
mod plan;
mod step;

use serde::{Deserialize, Serialize};

use super::error::TransformError;
pub use drawn::{Drawn, decode_mask};
pub use load::MAX_FILE_BYTES;
pub use pixel::Pixel;
pub use step::Step;

/// The steps that transform each image of an [`ImageFolder`](crate::ImageFolder), applied in order.
///
/// The result is a tensor of shape `[3, height, width]`, with pixels as `f32` divided by 255 (torchvision's
/// `ToTensor`) or as `u8`. The default has no steps.
///
/// The steps, their arithmetic and their rounding are those of torchvision. Resizing is bilinear with
/// antialiasing, as in Pillow. Steps are not run one by one: crops and flips only change which pixels are
/// read, so that pixels that a later step crops away are not resized, and normalisation happens while the
/// tensor is written.
///
/// # Randomness
/// Random steps draw from the sample's own generator
/// ([`SampleContext::rng`](loader_core::SampleContext::rng)), always the same number of times for the same
/// image, so that an image looks the same with any number of workers. A draw from 0 to 1 is the upper 53 bits
/// of a 64-bit number from the generator. A draw of a whole number below `n` is the upper half of the 128-bit
/// product of a 64-bit number and `n`.
///
/// # Examples
/// ```
/// use loader_core::{Dataset, SampleContext};
/// use loader_data::{ImageFolder, Transform};
///
/// let transform = Transform::new()
///     .random_resized_crop(96)
///     .random_horizontal_flip(0.5)
///     .normalise([0.5; 3], [0.5; 3]);
/// let photos = ImageFolder::open("photos")?.transform(transform)?;
/// let (image, _) = photos.get(0, &mut SampleContext::new(7))?;
/// assert_eq!(image.shape(), [3, 96, 96]);
/// assert!(image.as_slice().iter().all(|pixel| (-1.0..=1.0).contains(pixel)));
///
/// let error = ImageFolder::open("photos")?.transform(Transform::new().resize(0)).unwrap_err();
/// assert_eq!(error.to_string(), "resize: a size of 0 pixels is out of range; give one from 1 to 16384");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Transform {
    steps: Vec<Step>,
}

impl Transform {
    /// Means of red, green and blue over the training images of ImageNet, for pixels from 0 to 1.
    pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];

    /// Standard deviations of red, green and blue over ImageNet's training images, for pixels from 0 to 1.
    pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

    /// Creates a transform without steps: images keep their size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the usual transform for training classifiers:
    /// [`random_resized_crop`](Self::random_resized_crop) to `size` x `size` pixels,
    /// [`random_horizontal_flip`](Self::random_horizontal_flip) with probability 0.5, and normalisation with
    /// ImageNet's constants.
    ///
    /// # Examples
    /// ```
    /// use loader_data::{Step, Transform};
    ///
    /// let train = Transform::standard_train(224);
    /// assert_eq!(train.steps()[1], Step::RandomHorizontalFlip { p: 0.5 });
    /// ```
    pub fn standard_train(size: u32) -> Self {
        Self::new()
            .random_resized_crop(size)
            .random_horizontal_flip(0.5)
            .normalise(Self::IMAGENET_MEAN, Self::IMAGENET_STD)
    }

    /// Creates the usual transform for evaluating classifiers: a resize of the shorter side to 8/7 of `size`
    /// (256 for 224), a crop of the central `size` x `size` pixels, and normalisation with ImageNet's
    /// constants.
    ///
    /// # Examples
    /// ```
    /// use loader_data::{Step, Transform};
    ///
    /// let eval = Transform::standard_eval(224);
    /// assert_eq!(eval.steps()[0], Step::Resize { size: 256 });
    /// ```
    pub fn standard_eval(size: u32) -> Self {
        let resized = (u64::from(size) * 8 / 7).try_into().unwrap_or(u32::MAX);
        Self::new().resize(resized).center_crop(size, size).normalise(Self::IMAGENET_MEAN, Self::IMAGENET_STD)
    }

    /// Adds [`Step::Resize`]: makes the shorter side `size` pixels long and keeps the aspect ratio.
    #[must_use]
    pub fn resize(self, size: u32) -> Self {
        self.step(Step::Resize { size })
    }

    /// Adds [`Step::ResizeExact`]: resizes to `height` x `width` pixels and does not keep the aspect ratio.
    #[must_use]
    pub fn resize_exact(self, height: u32, width: u32) -> Self {
        self.step(Step::ResizeExact { height, width })
    }

    /// Adds [`Step::CenterCrop`]: keeps the central `height` x `width` pixels.
    #[must_use]
    pub fn center_crop(self, height: u32, width: u32) -> Self {
        self.step(Step::CenterCrop { height, width })
    }

    /// Adds [`Step::RandomResizedCrop`] to `size` x `size` pixels, with torchvision's defaults: 8 to 100 % of
    /// the image's area and an aspect ratio from 3/4 to 4/3.
    #[must_use]
    pub fn random_resized_crop(self, size: u32) -> Self {
        let (scale, ratio) = ((0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0));
        self.step(Step::RandomResizedCrop { height: size, width: size, scale, ratio })
    }

    /// Adds [`Step::RandomHorizontalFlip`]: mirrors left and right with probability `p`, from 0 to 1.
    #[must_use]
    pub fn random_horizontal_flip(self, p: f64) -> Self {
        self.step(Step::RandomHorizontalFlip { p })
    }

    /// Adds [`Step::Normalise`]: computes `(pixel - mean) / std` for each channel, for pixels from 0 to 1.
    /// Must be the last step, and the pixels must be `f32`.
    #[must_use]
    pub fn normalise(self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.step(Step::Normalise { mean, std })
    }

    /// Sets whether [`Step::ExifOrientation`] is the first step: turns each image upright before the other
    /// steps, as the orientation in its EXIF data says. The default is false, as in torchvision.
    ///
    /// # Examples
    /// ```
    /// use loader_data::{Step, Transform};
    ///
    /// let train = Transform::standard_train(224).exif_orientation(true);
    /// assert_eq!(train.steps()[0], Step::ExifOrientation);
    /// ```
    #[must_use]
    pub fn exif_orientation(mut self, is_applied: bool) -> Self {
        self.steps.retain(|step| *step != Step::ExifOrientation);
        if is_applied {
            self.steps.insert(0, Step::ExifOrientation);
        }
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Returns the steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Checks the values and the order of the steps.
    /// [`ImageFolder::transform`](crate::ImageFolder::transform) calls it.
    ///
    /// # Errors
    /// Returns [`TransformError`] for the first value that is out of bounds, or if a step follows
    /// [`Step::Normalise`] or comes before [`Step::ExifOrientation`].
    pub fn validate(&self) -> Result<(), TransformError> {
        self.steps.iter().try_for_each(Step::validate)?;
        let before_last = self.steps.split_last().map_or(&[][..], |(_, before)| before);
        if before_last.iter().any(|step| matches!(step, Step::Normalise { .. })) {
            return Err(TransformError::NormaliseNotLast);
        }
        if self.steps.iter().skip(1).any(|step| *step == Step::ExifOrientation) {
            return Err(TransformError::OrientationNotFirst);
        }
        Ok(())
    }

    /// Checks like [`validate`](Self::validate), and fails if the steps do not allow pixels of type `P`.
    pub(crate) fn validate_for<P: Pixel>(&self) -> Result<(), TransformError> {
        self.validate()?;
        if self.normalisation().is_some() && !P::CAN_BE_NORMALISED {
            return Err(TransformError::NormaliseBytes);
        }
        Ok(())
    }

    /// True if images are turned upright.
    fn turns_upright(&self) -> bool {
        self.steps.first() == Some(&Step::ExifOrientation)
    }

    /// Returns the means and standard deviations of the last step, if it normalises.
    fn normalisation(&self) -> Option<([f32; 3], [f32; 3])> {
        match self.steps.last() {
            Some(&Step::Normalise { mean, std }) => Some((mean, std)),
            _ => None,
        }
    }
}
