//! Decoded images and areas of them.

pub(super) use loader_jpeg::Area;
pub use loader_jpeg::Size;

use super::orientation::Orientation;

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
    /// Makes the picture a whole image, all black, with at least `pixel_bytes` bytes for each pixel.
    pub(super) fn clear(&mut self, size: Size, pixel_bytes: usize) {
        self.area = Area::new(0, 0, size);
        self.bytes.clear();
        self.bytes.resize(size.pixels() as usize * pixel_bytes.max(RGB), 0);
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
        match channels {
            1 | 2 => self.map_to_rgb(channels, |pixel| [pixel[0]; RGB]),
            4 => self.map_to_rgb(channels, |pixel| [pixel[0], pixel[1], pixel[2]]),
            _ => debug_assert_eq!(channels, RGB),
        }
        self.bytes.truncate(self.area.size.pixels() as usize * RGB);
    }

    /// Converts pixels of `pixel_bytes` bytes to RGB in place.
    pub(super) fn map_to_rgb(&mut self, pixel_bytes: usize, rgb: impl Fn(&[u8]) -> [u8; RGB]) {
        let pixels = self.area.size.pixels() as usize;
        let mut convert = |pixel: usize| {
            let colour = rgb(&self.bytes[pixel * pixel_bytes..][..pixel_bytes]);
            self.bytes[pixel * RGB..][..RGB].copy_from_slice(&colour);
        };
        // Pixels that grow are converted from the last one on: no pixel is overwritten before it is read.
        if pixel_bytes < RGB {
            (0..pixels).rev().for_each(&mut convert);
        } else {
            (0..pixels).for_each(&mut convert);
        }
        self.bytes.truncate(pixels * RGB);
    }

    /// Turns the part that the picture holds of an image of `size`.
    pub(super) fn turn(&mut self, orientation: Orientation, size: Size) {
        if orientation.is_upright() {
            return;
        }
        let mut turned = Self::default();
        turned.clear_part(orientation.turned(self.area, size));
        let Area { x: left, y: top, size: part } = turned.area;
        for y in top..top + part.height {
            for (x, pixel) in (left..).zip(turned.row_mut(left, y, part.width).as_chunks_mut().0) {
                let from = orientation.source(Area::new(x, y, Size::new(1, 1)), size);
                *pixel = *self.row(from.x, from.y, 1).first_chunk::<RGB>().expect("a pixel has three bytes");
            }
        }
        *self = turned;
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
