//! Plans: which pixels of an image become which pixels of the result. The steps of a transform change the
//! plan only; pixels are read and written once, when the plan is carried out.

use super::super::picture::{Area, Size};

/// Scales the part `source` of a picture to `scaled`, crops that to a window, and may mirror it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// A part of the picture. Scaling uses only pixels inside it, as if the part had been cut out first.
    pub(super) source: Area,
    /// The size that the whole `source` is scaled to.
    pub(super) scaled: Size,
    /// Left edge of the window on the scaled source. The window may extend beyond the scaled source on all
    /// sides; there its pixels are black.
    x: i64,
    /// Upper edge of the window.
    y: i64,
    /// Size of the window.
    size: Size,
    /// True if the window is mirrored.
    flipped: bool,
}

/// The part of the scaled source that is inside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visible {
    /// The part, in pixels of the scaled source.
    pub(super) area: Area,
    /// Left edge of the part in the window.
    pub(super) at_x: u32,
    /// Upper edge of the part in the window.
    pub(super) at_y: u32,
}

impl Plan {
    /// Creates a plan that keeps a picture of `size` unchanged.
    pub(super) fn whole(size: Size) -> Self {
        Self { source: Area { x: 0, y: 0, size }, scaled: size, x: 0, y: 0, size, flipped: false }
    }

    /// Returns the size of the result.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn is_flipped(&self) -> bool {
        self.flipped
    }

    pub(super) fn flip(&mut self) {
        self.flipped = !self.flipped;
    }

    pub(super) fn is_scaled(&self) -> bool {
        self.scaled != self.source.size
    }

    /// False if the plan must be carried out before the result can be scaled: a plan scales only once, and it
    /// cannot scale a window that extends beyond the picture.
    pub(super) fn can_resize(&self) -> bool {
        !self.is_scaled() && self.visible().is_some_and(|visible| visible.area.size == self.size)
    }

    /// Scales to `size`. [`can_resize`](Self::can_resize) must be true.
    pub(super) fn resize(&mut self, size: Size) {
        debug_assert!(self.can_resize());
        let Some(visible) = self.visible() else { return };
        self.source.x += visible.area.x;
        self.source.y += visible.area.y;
        self.source.size = visible.area.size;
        (self.scaled, self.size) = (size, size);
        (self.x, self.y) = (0, 0);
    }

    /// Keeps the pixels of an area of `size` at (`x`, `y`), which may extend beyond the edges.
    pub(super) fn crop(&mut self, x: i64, y: i64, size: Size) {
        let x = if self.flipped { i64::from(self.size.width) - x - i64::from(size.width) } else { x };
        self.x += x;
        self.y += y;
        self.size = size;
    }

    /// Returns the part of the picture that the result depends on, or `None` if the result is all black.
    pub(super) fn needed(&self) -> Option<Area> {
        let Visible { area, .. } = self.visible()?;
        let Area { x, y, size } = self.source;
        let (left, width) = pixels_read(area.x, area.size.width, self.scaled.width, size.width);
        let (top, height) = pixels_read(area.y, area.size.height, self.scaled.height, size.height);
        Some(Area { x: x + left, y: y + top, size: Size::new(width, height) })
    }

    /// Returns the column of the picture that is nearest to column `x` of the result before it is mirrored,
    /// or `None` outside of the picture.
    pub(super) fn nearest_column(&self, x: u32) -> Option<u32> {
        let Area { x: start, size, .. } = self.source;
        Some(start + nearest(self.x + i64::from(x), self.scaled.width, size.width)?)
    }

    /// Returns the row of the picture that is nearest to row `y` of the result, or `None` outside of the
    /// picture.
    pub(super) fn nearest_row(&self, y: u32) -> Option<u32> {
        let Area { y: start, size, .. } = self.source;
        Some(start + nearest(self.y + i64::from(y), self.scaled.height, size.height)?)
    }

    /// Returns where the box `[left, top, right, bottom]` of the picture is in the result before it is
    /// mirrored. Cuts it off at the edges of the source and of the result.
    pub(super) fn box_of(&self, [left, top, right, bottom]: [f64; 4]) -> [f64; 4] {
        let Area { x, y, size: source } = self.source;
        let edge = |edge: f64, start: u32, source: u32, scaled: u32, window: i64, size: u32| {
            let inside = (edge - f64::from(start)).clamp(0.0, source.into());
            let scaled = inside * f64::from(scaled) / f64::from(source);
            (scaled - window as f64).clamp(0.0, size.into())
        };
        let across = |at| edge(at, x, source.width, self.scaled.width, self.x, self.size.width);
        let down = |at| edge(at, y, source.height, self.scaled.height, self.y, self.size.height);
        [across(left), down(top), across(right), down(bottom)]
    }

    /// Returns the part of the scaled source inside the window, before mirroring, or `None` if it is empty.
    pub(super) fn visible(&self) -> Option<Visible> {
        let (x, at_x, width) = overlap(self.x, self.size.width, self.scaled.width)?;
        let (y, at_y, height) = overlap(self.y, self.size.height, self.scaled.height)?;
        Some(Visible { area: Area { x, y, size: Size::new(width, height) }, at_x, at_y })
    }
}

/// Intersects a window at `start` of length `length` with the pixels from 0 to `whole`, in one direction.
/// Returns the first pixel of the intersection, its position in the window, and the length of the
/// intersection.
fn overlap(start: i64, length: u32, whole: u32) -> Option<(u32, u32, u32)> {
    let from = start.max(0);
    let to = (start + i64::from(length)).min(whole.into());
    // The casts keep the values: all three are from 0 to `u32::MAX`.
    (from < to).then(|| (from as u32, (from - start) as u32, (to - from) as u32))
}

/// Returns the pixel of a source of length `source` whose centre is nearest to that of pixel `at`, if the
/// source is scaled to `scaled`; `None` outside of it.
fn nearest(at: i64, scaled: u32, source: u32) -> Option<u32> {
    let at = u32::try_from(at).ok().filter(|&at| at < scaled)?;
    // The cast rounds down. The result is below `source`, because `at + 0.5` is below `scaled`.
    Some(((f64::from(at) + 0.5) * f64::from(source) / f64::from(scaled)) as u32)
}

/// Returns start and length of the part of a source of length `source` that is scaled to the pixels at
/// `start` of length `length`, if the whole source is scaled to `scaled`.
pub(super) fn stretch(start: u32, length: u32, scaled: u32, source: u32) -> (f64, f64) {
    let scale = f64::from(source) / f64::from(scaled);
    let (start, mut length) = (f64::from(start) * scale, f64::from(length) * scale);
    // Rounding may move the end just beyond the source, which the resizer refuses.
    while start + length > f64::from(source) {
        length = length.next_down();
    }
    (start, length)
}

/// Returns start and length of the pixels of a source of length `source` from which the pixels at `start` of
/// length `length` are computed, if the whole source is scaled to `scaled`.
fn pixels_read(start: u32, length: u32, scaled: u32, source: u32) -> (u32, u32) {
    if scaled == source {
        return (start, length);
    }
    let (from, stretched) = stretch(start, length, scaled, source);
    // The bilinear filter reads on either side of a scaled pixel as many source pixels as the scaled pixel
    // covers, and at least one. One more pixel is a margin.
    let reach = (f64::from(source) / f64::from(scaled)).max(1.0) + 1.0;
    // The cast saturates: a negative start becomes 0.
    let first = (from - reach).floor() as u32;
    let end = ((from + stretched + reach).ceil() as u32).min(source);
    (first, end - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(x: u32, y: u32, width: u32, height: u32) -> Area {
        Area { x, y, size: Size::new(width, height) }
    }

    #[test]
    fn crops_add_up() {
        let mut plan = Plan::whole(Size::new(100, 50));
        plan.crop(10, 5, Size::new(60, 40));
        plan.crop(3, 2, Size::new(20, 10));
        assert_eq!(plan.visible().unwrap().area, area(13, 7, 20, 10));
        plan.resize(Size::new(224, 224));
        assert_eq!((plan.source, plan.size()), (area(13, 7, 20, 10), Size::new(224, 224)));
        assert!(plan.is_scaled() && !plan.can_resize());
    }

    #[test]
    fn a_crop_of_a_mirrored_picture_takes_the_other_side() {
        let mut plan = Plan::whole(Size::new(100, 50));
        plan.flip();
        plan.crop(10, 0, Size::new(30, 50));
        assert_eq!(plan.visible().unwrap().area, area(60, 0, 30, 50));
        plan.flip();
        plan.crop(1, 0, Size::new(5, 50));
        assert_eq!(plan.visible().unwrap().area, area(61, 0, 5, 50));
    }

    #[test]
    fn a_window_may_extend_beyond_the_picture() {
        let mut plan = Plan::whole(Size::new(10, 4));
        plan.crop(-2, -1, Size::new(6, 6));
        let visible = plan.visible().unwrap();
        assert_eq!((visible.area, visible.at_x, visible.at_y), (area(0, 0, 4, 4), 2, 1));
        assert!(!plan.can_resize());
        plan.crop(0, 0, Size::new(2, 6));
        assert_eq!(plan.visible(), None);
    }
}
