//! Carries out a [`Plan`]: crops, scales, mirrors and writes the pixels of a tensor.

use fast_image_resize::{
    FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer,
    images::{CroppedImage, Image, ImageRef},
};
use loader_jpeg::Buffers;

use super::{
    super::{
        error::ImageProblem,
        picture::{Area, MAX_PIXELS, Picture, RGB, Size},
    },
    pixel::Pixel,
    plan::{Plan, Visible, stretch},
};

/// A picture and the buffers that transform it, kept from image to image.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    pub(super) picture: Picture,
    pub(super) buffers: Buffers,
    scaled: Picture,
    resizer: Resizer,
}

/// For each of the three channels, the value of each byte in the tensor.
pub(super) type Tables<P> = [[P; 256]; RGB];

impl Canvas {
    /// Frees the buffers that are larger than `kept` bytes.
    pub(super) fn release(&mut self, kept: usize) {
        self.picture.release(kept);
        self.scaled.release(kept);
        self.buffers.release(kept);
        if self.resizer.size_of_internal_buffers() > kept {
            self.resizer.reset_internal_buffers();
        }
    }

    /// Replaces the picture by the result of `plan`, which is not mirrored.
    pub(super) fn flatten(&mut self, plan: &Plan) {
        let mut flat = Picture::default();
        flat.clear(plan.size(), RGB);
        if let Some(visible) = plan.visible() {
            let shown = self.shown(plan, &visible);
            for y in 0..visible.area.size.height {
                let row = shown.row(y);
                flat.row_mut(visible.at_x, visible.at_y + y, visible.area.size.width).copy_from_slice(row);
            }
        }
        self.picture = flat;
    }

    /// Carries out `plan` and writes the result to `out`, one channel after the other.
    pub(super) fn write<P: Pixel>(&mut self, plan: &Plan, tables: &Tables<P>, out: &mut [P]) {
        let size = plan.size();
        let (width, plane) = (size.width as usize, size.pixels() as usize);
        let (red, rest) = out.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);

        let visible = plan.visible();
        if visible.is_none_or(|visible| visible.area.size != size) {
            for (channel, table) in [&mut *red, &mut *green, &mut *blue].into_iter().zip(tables) {
                channel.fill(table[0]);
            }
        }
        let Some(visible) = visible else { return };
        let shown = self.shown(plan, &visible);
        let shown_width = visible.area.size.width as usize;
        let left = visible.at_x as usize;
        let left = if plan.is_flipped() { width - left - shown_width } else { left };
        for y in 0..visible.area.size.height {
            let start = (visible.at_y + y) as usize * width + left;
            let columns = start..start + shown_width;
            let row = [&mut red[columns.clone()], &mut green[columns.clone()], &mut blue[columns]];
            let pixels = shown.row(y).as_chunks::<RGB>().0;
            if plan.is_flipped() {
                spread(pixels.iter().rev(), tables, row);
            } else {
                spread(pixels.iter(), tables, row);
            }
        }
    }

    /// Returns the visible pixels, scaled if the plan scales.
    fn shown(&mut self, plan: &Plan, visible: &Visible) -> Shown<'_> {
        let Size { width, .. } = visible.area.size;
        if plan.is_scaled() {
            self.scale(plan, visible);
            return Shown { picture: &self.scaled, x: 0, y: 0, width };
        }
        let (x, y) = (plan.source.x + visible.area.x, plan.source.y + visible.area.y);
        Shown { picture: &self.picture, x, y, width }
    }

    /// Scales the visible part of the plan's source. The resizer reads a part with fractional edges, so that
    /// each pixel is computed from the same coordinates as if the whole source was scaled.
    fn scale(&mut self, plan: &Plan, visible: &Visible) {
        let held = self.picture.area();
        let source = plan.source;
        // The part of the source that the picture holds. It contains all pixels that the resizer reads.
        let left = source.x.max(held.x);
        let top = source.y.max(held.y);
        let right = (source.x + source.size.width).min(held.x + held.size.width);
        let bottom = (source.y + source.size.height).min(held.y + held.size.height);
        let all = ImageRef::new(held.size.width, held.size.height, self.picture.bytes(), PixelType::U8x3);
        let part = all.as_ref().ok().and_then(|all| {
            CroppedImage::new(all, left - held.x, top - held.y, right - left, bottom - top).ok()
        });
        let part = part.expect("the picture holds what the plan needs");

        let area = visible.area;
        let (x, width) = stretch(area.x, area.size.width, plan.scaled.width, source.size.width);
        let (y, height) = stretch(area.y, area.size.height, plan.scaled.height, source.size.height);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false)
            .crop(x - f64::from(left - source.x), y - f64::from(top - source.y), width, height);

        let size = area.size;
        self.scaled.clear_part(Area::new(0, 0, size));
        let out = Image::from_slice_u8(size.width, size.height, self.scaled.bytes_mut(), PixelType::U8x3);
        let mut out = out.expect("`clear_part` made room for it");
        self.resizer
            .resize(&part, &mut out, &options)
            .expect("both are RGB, and the part lies within the source");
    }
}

/// A part of a picture, read row by row.
struct Shown<'a> {
    picture: &'a Picture,
    x: u32,
    y: u32,
    width: u32,
}

impl Shown<'_> {
    fn row(&self, y: u32) -> &[u8] {
        self.picture.row(self.x, self.y + y, self.width)
    }
}

/// Fails if a tensor or picture of `size` has more than [`MAX_PIXELS`] pixels.
pub(super) fn check(size: Size) -> Result<(), ImageProblem> {
    if size.pixels() > MAX_PIXELS {
        return Err(ImageProblem::TooLargeAfterTransform { width: size.width, height: size.height });
    }
    Ok(())
}

/// Writes pixels to one row of each channel.
fn spread<'a, P: Pixel>(
    pixels: impl Iterator<Item = &'a [u8; RGB]>,
    tables: &Tables<P>,
    row: [&mut [P]; RGB],
) {
    let [red, green, blue] = row;
    let row = red.iter_mut().zip(green).zip(blue);
    for (((red, green), blue), pixel) in row.zip(pixels) {
        *red = tables[0][usize::from(pixel[0])];
        *green = tables[1][usize::from(pixel[1])];
        *blue = tables[2][usize::from(pixel[2])];
    }
}
