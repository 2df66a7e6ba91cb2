//! Page-locked memory that only this process has.

use std::{num::NonZeroUsize, slice};

use loader_pinning::Pinner;

use super::{Line, Mapping};

/// Lines in pages of their own, which are registered with the driver. Two registrations must not share a
/// page.
#[derive(Debug)]
pub(crate) struct Pages {
    mapping: Mapping,
    lines: usize,
}

impl Pages {
    /// Maps `lines` zeroed lines. Returns `None` if there is no memory, or if the driver cannot register it.
    pub(crate) fn pinned(lines: usize, pinner: &Pinner) -> Option<Self> {
        let len = NonZeroUsize::new(lines.checked_mul(size_of::<Line>())?)?;
        let mut mapping = Mapping::anonymous(len).ok()?;
        mapping.pin(pinner);
        mapping.is_pinned().then_some(Self { mapping, lines })
    }

    /// True in the process that registered the memory, false in its forked children.
    pub(crate) fn is_pinned(&self) -> bool {
        self.mapping.is_pinned()
    }

    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: the memory is mapped while `self` exists, zeroed by the system, aligned to a page, and
        // written only through `&mut self`.
        unsafe { slice::from_raw_parts(self.mapping.start().cast().as_ptr(), self.lines) }
    }

    #[inline]
    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as in `lines`; `&mut self` makes the access unique.
        unsafe { slice::from_raw_parts_mut(self.mapping.start().cast().as_ptr(), self.lines) }
    }
}
