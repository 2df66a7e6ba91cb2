//! Rows of Arrow arrays, which the formats of tables share: the types of columns, and records from their values.

mod batch;
mod cells;
mod kind;

use std::collections::VecDeque;

use kind::number_type;

pub(crate) use batch::{Batch, Samples};
pub(crate) use cells::Cells;
pub(crate) use kind::{Kind, select_columns};

/// Leaves out the first `position` rows of `groups`, of which each has as many rows as `rows` says. Returns the other
/// groups, each with its first row to be read.
pub(crate) fn remaining(
    groups: impl Iterator<Item = usize>,
    mut position: u64,
    rows: impl Fn(usize) -> usize,
) -> VecDeque<(usize, usize)> {
    groups
        .filter_map(|group| {
            let skipped = position.min(rows(group) as u64);
            position -= skipped;
            ((skipped as usize) < rows(group)).then_some((group, skipped as usize))
        })
        .collect()
}
