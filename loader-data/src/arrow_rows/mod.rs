//! Rows of Arrow arrays, which the formats of tables share: the types of columns, and records from their
//! values.

mod batch;
mod cells;
mod kind;
mod partition;

use std::collections::VecDeque;

use crate::{error::Result, shard_items::too_short};
use kind::number_type;

pub(crate) use batch::{Batch, Samples};
pub(crate) use cells::Cells;
pub(crate) use kind::{ColumnKind, select_columns};
pub(crate) use partition::{PartitionValue, partition_columns};

/// Skips the first `position` rows of `groups`. `rows` returns the number of rows of a group. Returns the
/// groups that have rows left, each with the first row to read.
///
/// # Errors
/// Returns an error if the groups have fewer rows.
pub(crate) fn remaining(
    groups: impl Iterator<Item = usize>,
    position: u64,
    rows: impl Fn(usize) -> usize,
) -> Result<VecDeque<(usize, usize)>> {
    let mut left = position;
    let remaining = groups
        .filter_map(|group| {
            let skipped = left.min(rows(group) as u64);
            left -= skipped;
            ((skipped as usize) < rows(group)).then_some((group, skipped as usize))
        })
        .collect();
    if left == 0 { Ok(remaining) } else { Err(too_short(position, position - left)) }
}
