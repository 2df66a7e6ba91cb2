//! Which pixels of an image end up where. Steps change the plan; pixels are touched once, when it is carried out.

use super::super::picture::{Area, Size};

/// Take `source` of the picture, scale it to `scaled`, keep of that what `window` shows, mirror it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Lies within the picture. Scaling does not look beyond it, as if it had been cut out first.
    pub(super) source: Area,
    /// The size that all of `source` is scaled to.
    pub(super) scaled: Size,
    /// Left edge of the window on the scaled source. The window may reach beyond it on all sides; there is black.
    x: i64,
    /// Its upper edge.
    y: i64,
    size: Size,
    flipped: bool,
}

/// What a window shows of the scaled source, and where in the window that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visible {
    pub(super) area: Area,
    pub(super) at_x: u32,
    pub(super) at_y: u32,
}

impl Plan {
    /// The picture as it is.
    pub(super) fn whole(size: Size) -> Self {
        Self { source: Area { x: 0, y: 0, size }, scaled: size, x: 0, y: 0, size, flipped: false }
    }

    /// Size of what the plan makes.
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

    /// False when the plan has to be carried out before it can be resized: one plan scales once, and only what is there.
    pub(super) fn can_resize(&self) -> bool {
        !self.is_scaled() && self.visible().is_some_and(|visible| visible.area.size == self.size)
    }

    /// Scales to `size`. Only where [`can_resize`](Self::can_resize).
    pub(super) fn resize(&mut self, size: Size) {
        debug_assert!(self.can_resize());
        let Some(visible) = self.visible() else { return };
        self.source.x += visible.area.x;
        self.source.y += visible.area.y;
        self.source.size = visible.area.size;
        (self.scaled, self.size) = (size, size);
        (self.x, self.y) = (0, 0);
    }

    /// Keeps `size` pixels from (`x`, `y`) on, which may lie beyond the edges.
    pub(super) fn crop(&mut self, x: i64, y: i64, size: Size) {
        let x = if self.flipped { i64::from(self.size.width) - x - i64::from(size.width) } else { x };
        self.x += x;
        self.y += y;
        self.size = size;
    }

    /// The part of the picture that is looked at; `None` when that is nothing.
    pub(super) fn needed(&self) -> Option<Area> {
        let Visible { area, .. } = self.visible()?;
        let Area { x, y, size } = self.source;
        let (left, width) = looked_at(area.x, area.size.width, self.scaled.width, size.width);
        let (top, height) = looked_at(area.y, area.size.height, self.scaled.height, size.height);
        Some(Area { x: x + left, y: y + top, size: Size::new(width, height) })
    }

    /// What the window shows, before mirroring; `None` when it shows nothing.
    pub(super) fn visible(&self) -> Option<Visible> {
        let (x, at_x, width) = overlap(self.x, self.size.width, self.scaled.width)?;
        let (y, at_y, height) = overlap(self.y, self.size.height, self.scaled.height)?;
        Some(Visible { area: Area { x, y, size: Size::new(width, height) }, at_x, at_y })
    }
}

/// Of a window from `start` of `length` on something as long as `whole`: where it starts to show it, how far into the window
/// that is, and how much of it.
fn overlap(start: i64, length: u32, whole: u32) -> Option<(u32, u32, u32)> {
    let from = start.max(0);
    let to = (start + i64::from(length)).min(whole.into());
    // All three are between 0 and a u32.
    (from < to).then(|| (from as u32, (from - start) as u32, (to - from) as u32))
}

/// The place in something `source` long that becomes `start` and `length` when it is scaled to `scaled`.
pub(super) fn stretch(start: u32, length: u32, scaled: u32, source: u32) -> (f64, f64) {
    let scale = f64::from(source) / f64::from(scaled);
    let (start, mut length) = (f64::from(start) * scale, f64::from(length) * scale);
    // Rounding may put the end just beyond the source, which the resizer refuses.
    while start + length > f64::from(source) {
        length = length.next_down();
    }
    (start, length)
}

/// Of something `source` long, the pixels that are looked at for `start` and `length` when it is scaled to `scaled`: start and
/// length.
fn looked_at(start: u32, length: u32, scaled: u32, source: u32) -> (u32, u32) {
    if scaled == source {
        return (start, length);
    }
    let (from, stretched) = stretch(start, length, scaled, source);
    // Each pixel comes from as many on either side as it stands for, at least one.
    let reach = (f64::from(source) / f64::from(scaled)).max(1.0) + 1.0;
    // Casts saturate.
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
    fn a_window_may_reach_beyond_the_picture() {
        let mut plan = Plan::whole(Size::new(10, 4));
        plan.crop(-2, -1, Size::new(6, 6));
        let visible = plan.visible().unwrap();
        assert_eq!((visible.area, visible.at_x, visible.at_y), (area(0, 0, 4, 4), 2, 1));
        assert!(!plan.can_resize());
        plan.crop(0, 0, Size::new(2, 6));
        assert_eq!(plan.visible(), None);
    }
}
