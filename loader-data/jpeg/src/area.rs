//! Sizes and rectangles of pixels.

/// Width and height in pixels.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Size {
    /// Creates a size of `width` x `height` pixels.
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    /// Returns the number of pixels, width times height.
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// A rectangle of pixels of an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Leftmost column, counted from 0.
    pub x: u32,
    /// Topmost row, counted from 0.
    pub y: u32,
    /// Width and height.
    pub size: Size,
}

impl Area {
    /// Creates the rectangle of `size` whose top left pixel is in column `x` of row `y`.
    pub fn new(x: u32, y: u32, size: Size) -> Self {
        Self { x, y, size }
    }

    /// True if the rectangle has pixels, all of them in an image of size `whole`.
    pub(crate) fn is_part_of(self, whole: Size) -> bool {
        let fits = |start: u32, length: u32, whole| start.checked_add(length).is_some_and(|end| end <= whole);
        self.size.pixels() > 0
            && fits(self.x, self.size.width, whole.width)
            && fits(self.y, self.size.height, whole.height)
    }
}
