//! The types of pixels.

use std::array;

use loader_core::Element;

/// The type of the pixels of an [`ImageFolder`](crate::ImageFolder): `f32` (from 0 to 1 before normalisation)
/// or `u8` (from 0 to 255). Cannot be implemented for other types.
pub trait Pixel: Element + sealed::Sealed {
    #[doc(hidden)]
    const CAN_BE_NORMALISED: bool;

    /// Returns the pixel for each value of a byte. `mean` and `std` are those of the channel, and are used
    /// only if [`CAN_BE_NORMALISED`](Self::CAN_BE_NORMALISED).
    #[doc(hidden)]
    fn table(mean: f32, std: f32) -> [Self; 256];
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u8 {}
}

impl Pixel for f32 {
    const CAN_BE_NORMALISED: bool = true;

    fn table(mean: f32, std: f32) -> [Self; 256] {
        // torchvision has the same order of operations, so the numbers are exactly the same.
        array::from_fn(|byte| (byte as Self / 255.0 - mean) / std)
    }
}

impl Pixel for u8 {
    const CAN_BE_NORMALISED: bool = false;

    fn table(_mean: f32, _std: f32) -> [Self; 256] {
        array::from_fn(|byte| byte as Self)
    }
}
