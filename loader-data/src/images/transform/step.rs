//! The steps of a transform.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        error::TransformError,
        picture::{MAX_SIDE, Size},
    },
    plan::Plan,
};

/// One step of a [`Transform`](crate::Transform). Sizes are in pixels, from 1 to [`MAX_SIDE`].
///
/// # Examples
/// ```
/// use loader_data::{Step, Transform};
///
/// let step = Step::RandomResizedCrop { height: 128, width: 256, scale: (0.5, 1.0), ratio: (1.5, 3.0) };
/// Transform::new().step(step).validate()?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Step {
    /// Makes the shorter side `size` pixels long and keeps the aspect ratio; rounds the longer side down.
    Resize {
        /// The shorter side.
        size: u32,
    },
    /// Resizes the image to `height` x `width` pixels and does not keep its aspect ratio.
    ResizeExact {
        /// The height.
        height: u32,
        /// The width.
        width: u32,
    },
    /// Keeps the central `height` x `width` pixels. Black is added around an image that is smaller.
    CenterCrop {
        /// The height.
        height: u32,
        /// The width.
        width: u32,
    },
    /// Takes a part of random area, aspect ratio and position, and resizes it to `height` x `width` pixels.
    /// After ten draws that do not fit into the image it takes the largest central part whose aspect ratio is
    /// within `ratio`.
    RandomResizedCrop {
        /// The height.
        height: u32,
        /// The width.
        width: u32,
        /// Minimum and maximum area of the part as a fraction of the image's area, above 0 and at most 1. The
        /// fraction is uniformly distributed.
        scale: (f64, f64),
        /// Minimum and maximum aspect ratio (width / height) of the part, above 0. Its logarithm is uniformly
        /// distributed.
        ratio: (f64, f64),
    },
    /// Mirrors left and right.
    RandomHorizontalFlip {
        /// The probability, from 0 to 1.
        p: f64,
    },
    /// Computes `(pixel - mean) / std` for red, green and blue, for pixels from 0 to 1. Must be the last
    /// step, and the pixels must be `f32`.
    Normalise {
        /// Mean of each channel; finite.
        mean: [f32; 3],
        /// Standard deviation of each channel; finite and above 0.
        std: [f32; 3],
    },
    /// Turns the image upright, as the orientation in its EXIF data says. Must be the first step.
    ExifOrientation,
}

impl Step {
    /// Returns the name of the step in messages and in serialised form.
    fn name(&self) -> &'static str {
        match self {
            Self::Resize { .. } => "resize",
            Self::ResizeExact { .. } => "resize_exact",
            Self::CenterCrop { .. } => "center_crop",
            Self::RandomResizedCrop { .. } => "random_resized_crop",
            Self::RandomHorizontalFlip { .. } => "random_horizontal_flip",
            Self::Normalise { .. } => "normalise",
            Self::ExifOrientation => "exif_orientation",
        }
    }

    pub(super) fn validate(&self) -> Result<(), TransformError> {
        let size = |size: u32| {
            let valid = (1..=MAX_SIDE).contains(&size);
            valid.then_some(()).ok_or(TransformError::Size { step: self.name(), size })
        };
        match *self {
            Self::Resize { size: side } => size(side),
            Self::ResizeExact { height, width } | Self::CenterCrop { height, width } => {
                size(height).and(size(width))
            }
            Self::RandomResizedCrop { height, width, scale, ratio } => {
                size(height).and(size(width))?;
                // Both conditions are negated, so that NaN fails.
                if !(scale.0 > 0.0 && scale.0 <= scale.1 && scale.1 <= 1.0) {
                    return Err(TransformError::Scale { min: scale.0, max: scale.1 });
                }
                if !(ratio.0 > 0.0 && ratio.0 <= ratio.1 && ratio.1.is_finite()) {
                    return Err(TransformError::Ratio { min: ratio.0, max: ratio.1 });
                }
                Ok(())
            }
            Self::RandomHorizontalFlip { p } => {
                let valid = (0.0..=1.0).contains(&p);
                valid.then_some(()).ok_or(TransformError::Probability { p })
            }
            Self::Normalise { mean, std } => {
                let bad = (0..3).find(|&channel| {
                    !(mean[channel].is_finite() && std[channel].is_finite() && std[channel] > 0.0)
                });
                bad.map_or(Ok(()), |channel| {
                    Err(TransformError::Normalise { channel, mean: mean[channel], std: std[channel] })
                })
            }
            Self::ExifOrientation => Ok(()),
        }
    }

    /// True if the step interpolates pixels.
    pub(super) fn resizes(&self) -> bool {
        matches!(self, Self::Resize { .. } | Self::ResizeExact { .. } | Self::RandomResizedCrop { .. })
    }

    /// Adds the step to `plan`.
    pub(super) fn extend(&self, plan: &mut Plan, rng: &mut impl Rng) {
        let size = plan.size();
        match *self {
            Self::Resize { size: shorter } => plan.resize(resized(size, shorter)),
            Self::ResizeExact { height, width } => plan.resize(Size::new(width, height)),
            Self::CenterCrop { height, width } => {
                let x = centred(size.width, width);
                let y = centred(size.height, height);
                plan.crop(x, y, Size::new(width, height));
            }
            Self::RandomResizedCrop { height, width, scale, ratio } => {
                let (x, y, part) = random_part(size, scale, ratio, rng);
                plan.crop(x.into(), y.into(), part);
                plan.resize(Size::new(width, height));
            }
            Self::RandomHorizontalFlip { p } => {
                if unit(rng) < p {
                    plan.flip();
                }
            }
            // The decoder turns the image, and a table normalises it.
            Self::ExifOrientation | Self::Normalise { .. } => {}
        }
    }
}

/// Scales `size` so that its shorter side is `shorter`.
fn resized(size: Size, shorter: u32) -> Size {
    // The cast keeps the value, which is at most MAX_SIDE squared.
    let longer = |long: u32, short: u32| (u64::from(shorter) * u64::from(long) / u64::from(short)) as u32;
    if size.width <= size.height {
        Size::new(shorter, longer(size.height, size.width))
    } else {
        Size::new(longer(size.width, size.height), shorter)
    }
}

/// Returns the start of `part` in the centre of `whole`, which is negative if `part` is longer.
fn centred(whole: u32, part: u32) -> i64 {
    if whole >= part {
        (f64::from(whole - part) / 2.0).round_ties_even() as i64
    } else {
        -i64::from((part - whole) / 2)
    }
}

/// Draws a random part of an image of size `whole`. Returns its left edge, upper edge and size.
fn random_part(whole: Size, scale: (f64, f64), ratio: (f64, f64), rng: &mut impl Rng) -> (u32, u32, Size) {
    const TRIES: u32 = 10;
    let area = f64::from(whole.width) * f64::from(whole.height);
    let log_ratio = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..TRIES {
        let area = area * between(scale, rng);
        let ratio = between(log_ratio, rng).exp();
        let width = (area * ratio).sqrt().round_ties_even();
        let height = (area / ratio).sqrt().round_ties_even();
        if (1.0..=f64::from(whole.width)).contains(&width)
            && (1.0..=f64::from(whole.height)).contains(&height)
        {
            let part = Size::new(width as u32, height as u32);
            let y = below(whole.height - part.height + 1, rng);
            let x = below(whole.width - part.width + 1, rng);
            return (x, y, part);
        }
    }
    let (width, height) = (f64::from(whole.width), f64::from(whole.height));
    // The casts saturate. `clamp` keeps at least one pixel of a very long image.
    let part = if width / height < ratio.0 {
        Size::new(whole.width, ((width / ratio.0).round_ties_even() as u32).clamp(1, whole.height))
    } else if width / height > ratio.1 {
        Size::new(((height * ratio.1).round_ties_even() as u32).clamp(1, whole.width), whole.height)
    } else {
        whole
    };
    ((whole.width - part.width) / 2, (whole.height - part.height) / 2, part)
}

/// Draws a number from 0 to below 1. It is computed here, because the distributions of `rand` may change
/// their results between releases.
fn unit(rng: &mut impl Rng) -> f64 {
    const STEP: f64 = 1.0 / (1u64 << 53) as f64;
    (rng.next_u64() >> 11) as f64 * STEP
}

/// Draws a number within `range`.
fn between(range: (f64, f64), rng: &mut impl Rng) -> f64 {
    range.0 + (range.1 - range.0) * unit(rng)
}

/// Draws a whole number below `bound`, which must not be 0. For sizes of images the bias is below 2^-49.
fn below(bound: u32, rng: &mut impl Rng) -> u32 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::ChaCha8Rng};

    use super::*;

    const SCALE: (f64, f64) = (0.08, 1.0);
    const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

    #[test]
    fn the_longer_side_is_rounded_down() {
        assert_eq!(resized(Size::new(500, 375), 256), Size::new(341, 256));
        assert_eq!(resized(Size::new(375, 500), 256), Size::new(256, 341));
        assert_eq!(resized(Size::new(7, 7), 256), Size::new(256, 256));
        assert_eq!(resized(Size::new(1, 16_384), 16_384), Size::new(16_384, 1 << 28));
    }

    #[test]
    fn halves_are_rounded_to_even_and_padding_down() {
        let starts = [(9, 4), (7, 4), (341, 224), (4, 4), (4, 9)].map(|(whole, part)| centred(whole, part));
        assert_eq!(starts, [2, 2, 58, 0, -2]);
    }

    #[test]
    fn random_parts_lie_within_the_image_and_the_bounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for size in [(640, 480), (480, 640), (500, 375), (33, 32), (1, 1), (2, 1), (1, 1000), (2000, 3)] {
            let size = Size::new(size.0, size.1);
            for _ in 0..500 {
                let (x, y, part) = random_part(size, SCALE, RATIO, &mut rng);
                assert!(part.width > 0 && part.height > 0, "{part:?} of {size:?}");
                assert!(
                    x + part.width <= size.width && y + part.height <= size.height,
                    "{part:?} of {size:?}"
                );
                if size.width.min(size.height) > 300 {
                    let share = part.pixels() as f64 / size.pixels() as f64;
                    let ratio = f64::from(part.width) / f64::from(part.height);
                    assert!((0.078..=1.0).contains(&share), "{share}");
                    assert!((0.74..=1.35).contains(&ratio), "{ratio}");
                }
            }
        }
    }

    #[test]
    fn an_image_that_is_too_long_is_cut_in_the_centre() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(random_part(Size::new(1000, 3), (1.0, 1.0), RATIO, &mut rng), (498, 0, Size::new(4, 3)));
        assert_eq!(random_part(Size::new(3, 1000), (1.0, 1.0), RATIO, &mut rng), (0, 498, Size::new(3, 4)));
        assert_eq!(random_part(Size::new(3, 1), (1.0, 1.0), (10.0, 10.0), &mut rng), (0, 0, Size::new(3, 1)));
    }

    #[test]
    fn draws_never_change_between_releases() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let parts: [_; 3] = std::array::from_fn(|_| random_part(Size::new(500, 375), SCALE, RATIO, &mut rng));
        let parts = parts.map(|(x, y, part)| (x, y, part.width, part.height));
        assert_eq!(parts, GOLDEN_PARTS);
        assert_eq!(unit(&mut rng), GOLDEN_UNIT);
    }

    const GOLDEN_PARTS: [(u32, u32, u32, u32); 3] =
        [(228, 105, 187, 226), (144, 1, 331, 359), (69, 26, 321, 242)];
    const GOLDEN_UNIT: f64 = 0.521_249_886_728_697_4;

    #[test]
    fn draws_are_uniform() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[(unit(&mut rng) * 10.0) as usize] += 1;
            seen[below(10, &mut rng) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (1800..2200).contains(count)), "{seen:?}");
    }
}
