//! A decoded image.

/// Width and height in pixels.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Size {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    pub(super) fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// RGB bytes, row by row from the top. The buffer is used again for the next image.
#[derive(Debug, Default)]
pub(super) struct Picture {
    size: Size,
    bytes: Vec<u8>,
}

/// Bytes of a pixel.
pub(super) const RGB: usize = 3;

impl Picture {
    /// Makes it all black, with at least `channels` bytes a pixel.
    pub(super) fn clear(&mut self, size: Size, channels: usize) {
        self.size = size;
        self.bytes.clear();
        self.bytes.resize(size.pixels() as usize * channels.max(RGB), 0);
    }

    /// Gives the buffer back when it is larger than `kept` bytes.
    pub(super) fn release(&mut self, kept: usize) {
        if self.bytes.capacity() > kept {
            *self = Self::default();
        }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Row `y` from column `x` on, `width` pixels.
    pub(super) fn row(&self, x: u32, y: u32, width: u32) -> &[u8] {
        let start = (y as usize * self.size.width as usize + x as usize) * RGB;
        &self.bytes[start..start + width as usize * RGB]
    }

    pub(super) fn row_mut(&mut self, x: u32, y: u32, width: u32) -> &mut [u8] {
        let start = (y as usize * self.size.width as usize + x as usize) * RGB;
        &mut self.bytes[start..start + width as usize * RGB]
    }

    /// Turns bytes of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGB, alpha) channels into RGB in place.
    pub(super) fn make_rgb(&mut self, channels: usize) {
        let bytes = &mut self.bytes;
        let pixels = self.size.pixels() as usize;
        match channels {
            // A pixel grows: from the last, so that none is overwritten before it is read.
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
