//! How an image is turned.

use loader_jpeg::{Area, Size};

/// Turns an image: exchanges columns and rows, then mirrors the result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    /// True if columns become rows.
    transposed: bool,
    /// True if left and right are exchanged, after the transposition.
    mirrored_x: bool,
    /// True if top and bottom are exchanged, after the transposition.
    mirrored_y: bool,
}

impl Orientation {
    /// Returns the orientation with this number in EXIF. A number from outside 1 to 8 means upright, as 1
    /// does.
    pub(super) fn new(number: u16) -> Self {
        Self {
            transposed: matches!(number, 5..=8),
            mirrored_x: matches!(number, 2 | 3 | 6 | 7),
            mirrored_y: matches!(number, 3 | 4 | 7 | 8),
        }
    }

    pub(super) fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Returns the size of an image of `size` after it was turned.
    pub(super) fn size(self, size: Size) -> Size {
        if self.transposed { Size::new(size.height, size.width) } else { size }
    }

    /// Returns where the part `area` of an image of `size` is after the image was turned.
    pub(super) fn turned(self, area: Area, size: Size) -> Area {
        self.mirrored(if self.transposed { transposed(area) } else { area }, self.size(size))
    }

    /// Returns which part of an image of `size` becomes the part `area` of the turned image.
    pub(super) fn source(self, area: Area, size: Size) -> Area {
        let area = self.mirrored(area, self.size(size));
        if self.transposed { transposed(area) } else { area }
    }

    fn mirrored(self, Area { x, y, size: part }: Area, size: Size) -> Area {
        let x = if self.mirrored_x { size.width - x - part.width } else { x };
        let y = if self.mirrored_y { size.height - y - part.height } else { y };
        Area::new(x, y, part)
    }
}

fn transposed(Area { x, y, size }: Area) -> Area {
    Area::new(y, x, Size::new(size.height, size.width))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_part_is_found_again(
            number in 0u16..10, width in 1u32..9, height in 1u32..9, part: [prop::sample::Index; 4],
        ) {
            let size = Size::new(width, height);
            let orientation = Orientation::new(number);
            let (x, y) = (part[0].index(width as usize) as u32, part[1].index(height as usize) as u32);
            let within = Size::new(
                1 + part[2].index((width - x) as usize) as u32,
                1 + part[3].index((height - y) as usize) as u32,
            );
            let area = Area::new(x, y, within);
            prop_assert_eq!(orientation.source(orientation.turned(area, size), size), area);
        }
    }
}
