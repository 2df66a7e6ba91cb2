//! Decoded images and areas of them.

pub(super) use loader_jpeg::{Area, Size};

/// Maximum width and maximum height of an image, in pixels: 16,384.
pub const MAX_SIDE: u32 = 16_384;

/// Maximum number of pixels of an image: 178,956,970, the limit of Pillow (half a gigabyte when decoded).
pub const MAX_PIXELS: u64 = 178_956_970;

/// An image, or the part of it that is needed, as RGB bytes, row by row from the top. The buffer is reused
/// for the next image.
#[derive(Debug, Default)]
pub(super) struct Picture {
    area: Area,
    bytes: Vec<u8>,
}

/// Number of bytes of a pixel.
pub(super) const RGB: usize = 3;

impl Picture {
    /// Makes the picture a whole image, all black, with at least `channels` bytes per pixel.
    pub(super) fn clear(&mut self, size: Size, channels: usize) {
        self.area = Area::new(0, 0, size);
        self.bytes.clear();
        self.bytes.resize(size.pixels() as usize * channels.max(RGB), 0);
    }

    /// Makes the picture the part `area` of an image. The caller must write all pixels.
    pub(super) fn clear_part(&mut self, area: Area) {
        self.area = area;
        self.bytes.resize(area.size.pixels() as usize * RGB, 0);
    }

    /// Replaces the image by one that `decode` writes: RGB, row by row. `decode` returns the area of the
    /// image that it has written.
    pub(super) fn replace<E>(
        &mut self,
        decode: impl FnOnce(&mut Vec<u8>) -> Result<Area, E>,
    ) -> Result<(), E> {
        self.area = decode(&mut self.bytes)?;
        Ok(())
    }

    /// Frees the buffer if it is larger than `kept` bytes.
    pub(super) fn release(&mut self, kept: usize) {
        if self.bytes.capacity() > kept {
            *self = Self::default();
        }
    }

    /// Returns the area of the image that the picture holds.
    pub(super) fn area(&self) -> Area {
        self.area
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns `width` pixels of row `y` of the image, from column `x` on.
    pub(super) fn row(&self, x: u32, y: u32, width: u32) -> &[u8] {
        let start = self.offset(x, y);
        &self.bytes[start..start + width as usize * RGB]
    }

    pub(super) fn row_mut(&mut self, x: u32, y: u32, width: u32) -> &mut [u8] {
        let start = self.offset(x, y);
        &mut self.bytes[start..start + width as usize * RGB]
    }

    fn offset(&self, x: u32, y: u32) -> usize {
        let Area { x: left, y: top, size } = self.area;
        ((y - top) as usize * size.width as usize + (x - left) as usize) * RGB
    }

    /// Converts pixels of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGB, alpha) channels to RGB in place.
    pub(super) fn make_rgb(&mut self, channels: usize) {
        let bytes = &mut self.bytes;
        let pixels = self.area.size.pixels() as usize;
        match channels {
            // Pixels grow, so the loop starts with the last one: no pixel is overwritten before it is read.
            1 | 2 => {
                for pixel in (0..pixels).rev() {
                    let grey = bytes[pixel * channels];
                    bytes[pixel * RGB..][..RGB].fill(grey);
                }
            }
            4 => {
                for pixel in 0..pixels {
                    bytes.copy_within(pixel * channels..pixel * channels + RGB, pixel * RGB);
                }
            }
            _ => debug_assert_eq!(channels, RGB),
        }
        bytes.truncate(pixels * RGB);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb_of(channels: usize, bytes: &[u8]) -> Vec<u8> {
        let mut picture = Picture::default();
        picture.clear(Size::new(3, 1), channels);
        picture.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        picture.make_rgb(channels);
        picture.bytes
    }

    #[test]
    fn any_channels_become_rgb() {
        assert_eq!(rgb_of(1, &[1, 2, 3]), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(rgb_of(2, &[1, 99, 2, 99, 3, 99]), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(rgb_of(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(rgb_of(4, &[1, 2, 3, 99, 4, 5, 6, 99, 7, 8, 9, 99]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
