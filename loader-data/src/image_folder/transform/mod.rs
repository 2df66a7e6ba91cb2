//! What is done with an image between its file and the tensor.

mod canvas;
mod load;
mod pixel;
mod plan;
mod step;

use serde::{Deserialize, Serialize};

use super::error::TransformError;
pub use load::MAX_FILE_BYTES;
pub use pixel::Pixel;
pub use step::Step;

/// What is done with each image of an [`ImageFolder`](crate::ImageFolder): steps, applied in the order in which they were added.
/// The default has no steps. At the end the pixels go to `[3, height, width]`, as `f32` divided by 255 (torchvision's `ToTensor`)
/// or as `u8`.
///
/// The steps, their arithmetic and their rounding are torchvision's; resizing is bilinear with antialiasing, as Pillow's. Steps
/// are not run one by one: crops and flips only change which pixels are read, so that nothing is resized that is cropped away
/// later, and normalisation happens as the tensor is written.
///
/// # Randomness
/// Random steps draw from the sample's own generator ([`Context::rng`](loader_core::Context::rng)), always the same number of
/// times for the same image, so that an image looks the same with any number of workers. A draw from 0 to 1 is the upper 53 bits
/// of one 64-bit number; a draw of a whole number below `n` is the upper half of its 128-bit product with `n`.
///
/// # Examples
/// ```
/// use loader_core::{Context, Dataset};
/// use loader_data::{ImageFolder, Transform};
///
/// let transform = Transform::new()
///     .random_resized_crop(96)
///     .random_horizontal_flip(0.5)
///     .normalise([0.5; 3], [0.5; 3]);
/// let photos = ImageFolder::open("photos")?.transform(transform)?;
/// let (image, _) = photos.get(0, &mut Context::new(7))?;
/// assert_eq!(image.shape(), [3, 96, 96]);
/// assert!(image.as_slice().iter().all(|pixel| (-1.0..=1.0).contains(pixel)));
///
/// let error = ImageFolder::open("photos")?.transform(Transform::new().resize(0)).unwrap_err();
/// assert_eq!(error.to_string(), "resize: a size of 0 pixels is not possible; give one from 1 to 16384");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Transform {
    steps: Vec<Step>,
}

impl Transform {
    /// Mean of red, green and blue over ImageNet's training images, for pixels from 0 to 1.
    pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];

    /// Standard deviation of red, green and blue over ImageNet's training images, for pixels from 0 to 1.
    pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

    /// A transform without steps: images keep their size.
    pub fn new() -> Self {
        Self::default()
    }

    /// What classifiers are usually trained with: [`random_resized_crop`](Self::random_resized_crop) to `size` times `size`
    /// pixels, [`random_horizontal_flip`](Self::random_horizontal_flip) of every second image, and normalisation with ImageNet's
    /// constants.
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

    /// What classifiers are usually evaluated with: the shorter side resized to 8/7 of `size` (256 for 224), the central `size`
    /// times `size` pixels, and normalisation with ImageNet's constants.
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

    /// Adds [`Step::Resize`]: the shorter side becomes `size` pixels, the aspect ratio stays.
    #[must_use]
    pub fn resize(self, size: u32) -> Self {
        self.step(Step::Resize { size })
    }

    /// Adds [`Step::ResizeExact`]: `height` times `width` pixels, whatever the aspect ratio was.
    #[must_use]
    pub fn resize_exact(self, height: u32, width: u32) -> Self {
        self.step(Step::ResizeExact { height, width })
    }

    /// Adds [`Step::CenterCrop`]: the central `height` times `width` pixels.
    #[must_use]
    pub fn center_crop(self, height: u32, width: u32) -> Self {
        self.step(Step::CenterCrop { height, width })
    }

    /// Adds [`Step::RandomResizedCrop`] to `size` times `size` pixels, with torchvision's defaults: 8 to 100 % of the image's
    /// area, an aspect ratio from 3/4 to 4/3.
    #[must_use]
    pub fn random_resized_crop(self, size: u32) -> Self {
        let (scale, ratio) = ((0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0));
        self.step(Step::RandomResizedCrop { height: size, width: size, scale, ratio })
    }

    /// Adds [`Step::RandomHorizontalFlip`]: mirrors with probability `p`, from 0 to 1.
    #[must_use]
    pub fn random_horizontal_flip(self, p: f64) -> Self {
        self.step(Step::RandomHorizontalFlip { p })
    }

    /// Adds [`Step::Normalise`]: `(pixel - mean) / std` for each channel, pixels being from 0 to 1. Must be last, and for `f32`
    /// only.
    #[must_use]
    pub fn normalise(self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.step(Step::Normalise { mean, std })
    }

    /// Adds any step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Checks all values. [`ImageFolder::transform`](crate::ImageFolder::transform) does it by itself.
    ///
    /// # Errors
    /// [`TransformError`], for the first value that is out of bounds.
    pub fn validate(&self) -> Result<(), TransformError> {
        self.steps.iter().try_for_each(Step::validate)?;
        let before_last = self.steps.split_last().map_or(&[][..], |(_, before)| before);
        if before_last.iter().any(|step| matches!(step, Step::Normalise { .. })) {
            return Err(TransformError::NormaliseNotLast);
        }
        Ok(())
    }

    /// As [`validate`](Self::validate), and whether pixels can be of type `P`.
    pub(super) fn validate_for<P: Pixel>(&self) -> Result<(), TransformError> {
        self.validate()?;
        if self.normalisation().is_some() && !P::CAN_BE_NORMALISED {
            return Err(TransformError::NormaliseBytes);
        }
        Ok(())
    }

    /// Mean and standard deviation.
    fn normalisation(&self) -> Option<([f32; 3], [f32; 3])> {
        match self.steps.last() {
            Some(&Step::Normalise { mean, std }) => Some((mean, std)),
            _ => None,
        }
    }
}
