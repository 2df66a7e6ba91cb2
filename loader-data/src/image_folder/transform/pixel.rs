//! The types that pixels can have.

use std::array;

use loader_core::Element;

/// A type that pixels of an [`ImageFolder`](crate::ImageFolder) can have: `f32` (from 0 to 1 before normalisation) or `u8` (from
/// 0 to 255).
pub trait Pixel: Element + sealed::Sealed {
    #[doc(hidden)]
    const CAN_BE_NORMALISED: bool;

    /// What each byte of a channel becomes.
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
        // In torchvision's order of operations, so that the numbers are the same to the last bit.
        array::from_fn(|byte| (byte as Self / 255.0 - mean) / std)
    }
}

impl Pixel for u8 {
    const CAN_BE_NORMALISED: bool = false;

    fn table(_mean: f32, _std: f32) -> [Self; 256] {
        array::from_fn(|byte| byte as Self)
    }
}
