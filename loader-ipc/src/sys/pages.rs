//! Page-locked memory of this process alone.

use std::{num::NonZeroUsize, slice};

use super::{Line, Mapping, Pinner};

/// Lines in pages of their own, all registered with the driver: two registrations must not share a page.
#[derive(Debug)]
pub(crate) struct Pages {
    mapping: Mapping,
    lines: usize,
}

impl Pages {
    /// So many zeroed lines; `None` when there is no memory for them or it cannot be registered.
    pub(crate) fn pinned(lines: usize, pinner: &Pinner) -> Option<Self> {
        let len = NonZeroUsize::new(lines.checked_mul(size_of::<Line>())?)?;
        let mut mapping = Mapping::anonymous(len).ok()?;
        mapping.pin(pinner);
        mapping.is_pinned().then_some(Self { mapping, lines })
    }

    /// False in a forked child.
    pub(crate) fn is_pinned(&self) -> bool {
        self.mapping.is_pinned()
    }

    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: mapped while `self` lives, zeroed by the system, aligned to a page; written only through `&mut self`.
        unsafe { slice::from_raw_parts(self.mapping.start().cast().as_ptr(), self.lines) }
    }

    #[inline]
    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as in `lines`; `&mut self` makes the access unique.
        unsafe { slice::from_raw_parts_mut(self.mapping.start().cast().as_ptr(), self.lines) }
    }
}
