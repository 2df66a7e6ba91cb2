//! Converts the planes of the components to RGB.

use crate::{
    CHANNELS,
    area::Area,
    baseline::{Plane, Span},
    header::Header,
};

/// Buffers for one row of chroma, enlarged to the resolution of luma.
#[derive(Debug, Default)]
pub(crate) struct ChromaRows {
    blue: ChromaRow,
    red: ChromaRow,
}

#[derive(Debug, Default)]
struct ChromaRow {
    /// The row, interpolated vertically.
    blended: Vec<u8>,
    /// The row, interpolated in both directions.
    enlarged: Vec<u8>,
}

impl ChromaRows {
    /// Writes the pixels of `area` to `pixels`, which has the size of `area`. `planes` contain the groups of
    /// blocks in `columns` and `rows`.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        header: &Header<'_>,
        area: Area,
        (columns, rows): (Span, Span),
        planes: &[Plane; 3],
        pixels: &mut [u8],
    ) {
        let left = area.x as usize - columns.start * header.across * 8;
        let width = area.size.width as usize;
        for (y, out) in (area.y..).zip(pixels.chunks_exact_mut(width * CHANNELS)) {
            let out = out.as_chunks_mut::<CHANNELS>().0;
            let y = y as usize - rows.start * header.down * 8;
            let luma = &planes[0].row(y)[left..left + width];
            if header.is_grey() {
                for (pixel, &grey) in out.iter_mut().zip(luma) {
                    *pixel = [grey; CHANNELS];
                }
                continue;
            }
            let blue = self.blue.enlarge(&planes[1], y, header);
            let red = self.red.enlarge(&planes[2], y, header);
            convert(luma, &blue[left..left + width], &red[left..left + width], out);
        }
    }
}

impl Plane {
    #[inline(always)]
    fn row(&self, y: usize) -> &[u8] {
        &self.bytes[y * self.width..][..self.width]
    }

    fn height(&self) -> usize {
        self.bytes.len() / self.width
    }
}

impl ChromaRow {
    /// Returns row `y` of chroma, as wide as a row of luma. In a direction in which chroma has half the size,
    /// a pixel is 3/4 of the nearest chroma pixel plus 1/4 of the second nearest. The outermost pixels are
    /// repeated beyond the edges.
    #[inline(always)]
    fn enlarge<'a>(&'a mut self, plane: &'a Plane, y: usize, header: &Header<'_>) -> &'a [u8] {
        let Self { blended, enlarged } = self;
        let row = if header.down == 1 {
            plane.row(y)
        } else {
            let near = y / 2;
            let far =
                if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(plane.height() - 1) };
            blended.resize(plane.width, 0);
            for ((out, &near), &far) in blended.iter_mut().zip(plane.row(near)).zip(plane.row(far)) {
                *out = blend(near, far);
            }
            blended
        };
        if header.across == 1 {
            return row;
        }
        enlarged.resize(plane.width * 2, 0);
        let pairs = enlarged.as_chunks_mut::<2>().0;
        // A row has at least one block, which is eight pixels wide.
        let last = row.len() - 1;
        pairs[0] = [row[0], blend(row[0], row[1])];
        for (pair, near) in pairs[1..last].iter_mut().zip(row.windows(3)) {
            *pair = [blend(near[1], near[0]), blend(near[1], near[2])];
        }
        pairs[last] = [blend(row[last], row[last - 1]), row[last]];
        enlarged
    }
}

/// Returns 3/4 of `near` plus 1/4 of `far`, rounded.
#[inline(always)]
fn blend(near: u8, far: u8) -> u8 {
    ((u16::from(near) * 3 + 2 + u16::from(far)) >> 2) as u8
}

/// Converts YCbCr to RGB, in fixed-point numbers with units of 2^-14.
#[inline(always)]
fn convert(luma: &[u8], blue: &[u8], red: &[u8], out: &mut [[u8; CHANNELS]]) {
    const BITS: u32 = 14;
    // Rounds a half down, as zune-jpeg does.
    const ALMOST_HALF: i32 = (1 << (BITS - 1)) - 1;
    for (((out, &luma), &blue), &red) in out.iter_mut().zip(luma).zip(blue).zip(red) {
        let luma = (i32::from(luma) << BITS) + ALMOST_HALF;
        let (blue, red) = (i32::from(blue) - 128, i32::from(red) - 128);
        let level = |value: i32| (value >> BITS).clamp(0, 255) as u8;
        *out = [
            level(luma + red * 22_970),
            level(luma - red * 11_700 - blue * 5_638),
            level(luma + blue * 29_032),
        ];
    }
}
