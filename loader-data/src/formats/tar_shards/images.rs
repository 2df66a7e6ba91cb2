//! Decodes images in archives.

use super::TarShards;
use crate::{
    decoders::ImageColumn,
    images::{Transform, TransformError},
};

impl<R> TarShards<R> {
    /// Decodes the members `jpg`, `jpeg` and `png` to tensors of shape `[3, height, width]` with pixels of
    /// type `f32` from 0 to 1, as [`ImageFolder`](crate::ImageFolder) does.
    ///
    /// # Errors
    /// Returns [`TransformError`] if a value of the transform is out of bounds.
    pub fn decode_images(mut self, transform: Transform) -> Result<Self, TransformError> {
        self.decoding.images = Some(ImageColumn::f32(transform)?);
        Ok(self)
    }

    /// Decodes images as [`decode_images`](Self::decode_images) does, to pixels of type `u8`.
    ///
    /// # Errors
    /// Returns [`TransformError`] if a value of the transform is out of bounds, or it normalises.
    pub fn decode_images_u8(mut self, transform: Transform) -> Result<Self, TransformError> {
        self.decoding.images = Some(ImageColumn::u8(transform)?);
        Ok(self)
    }
}
