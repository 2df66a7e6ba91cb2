//! Random access to the rows of row groups, with a cache of decoded row groups.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use loader_core::DatasetMemory;

use super::{
    batches::{Batches, KeptRows, NoRoom, Selection},
    file::malformed,
    table::{Group, Table},
};
use crate::{
    arrow_rows::Batch,
    error::{DataError, Result},
    part_cache::PartCache,
};

/// Row groups of which at least this share of the rows is wanted are decoded as a whole: one in 4.
const WHOLE: usize = 4;

/// Decoded row groups.
///
/// A row group is decoded as a whole if it was read before and would still be in the cache. Random rows of
/// data that is larger than the cache would otherwise decode a whole row group for each row.
#[derive(Debug, Default)]
pub(super) struct Cache {
    decoded: PartCache<KeptRows>,
    /// Row groups of which rows were read, and their sizes: as many as the cache could hold.
    seen: VecDeque<(usize, u64)>,
    /// Row groups that did not fit when they were decoded, and the minimum number of bytes that they need.
    needed: HashMap<usize, u64>,
}

/// Decoded rows of a row group.
#[derive(Debug)]
pub(super) enum DecodedRows {
    /// All rows.
    All(Arc<KeptRows>),
    /// Only the rows that were asked for, in this order.
    Some(Vec<Arc<Batch>>),
}

impl Cache {
    /// Reads the given rows of row group `index`, in ascending order, each once. The cache holds at most
    /// `limit` bytes, and reserves them from `memory`.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be read.
    pub(super) fn read(
        &mut self,
        table: &Table,
        index: usize,
        rows: &[usize],
        limit: u64,
        memory: &DatasetMemory,
    ) -> Result<DecodedRows> {
        if let Some(decoded) = self.decoded.get(index) {
            return Ok(DecodedRows::All(decoded));
        }
        let group = table.group(index);
        let was_seen = self.note(index, group.bytes, limit);
        let is_worth_it = was_seen || rows.len() >= group.rows.div_ceil(WHOLE);
        let needed = self.needed.get(&index).copied().unwrap_or(group.bytes);
        if is_worth_it && let Some(mut reserved) = self.decoded.make_room(needed, limit, memory) {
            let batches = table.read(group, Selection::From(0), None)?;
            match KeptRows::read(batches, group.rows, limit, &mut reserved)? {
                Ok(decoded) => {
                    let decoded = Arc::new(decoded);
                    self.decoded.insert(index, &decoded, reserved, limit);
                    return Ok(DecodedRows::All(decoded));
                }
                Err(NoRoom { bytes, .. }) => {
                    self.needed.insert(index, bytes);
                }
            }
        }
        read_rows(table, group, rows).map(DecodedRows::Some)
    }

    /// Notes that the row group is read. Returns whether it would still be in the cache if all row groups
    /// were kept that were read before.
    fn note(&mut self, index: usize, bytes: u64, limit: u64) -> bool {
        let at = self.seen.iter().position(|(group, _)| *group == index);
        at.and_then(|at| self.seen.remove(at));
        self.seen.push_front((index, bytes));
        while self.seen.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add) > limit {
            self.seen.pop_back();
        }
        at.is_some()
    }
}

fn read_rows(table: &Table, group: Group, rows: &[usize]) -> Result<Vec<Arc<Batch>>> {
    let mut batches: Batches = table.read(group, Selection::Rows(rows), None)?;
    let mut read = Vec::new();
    while let Some(batch) = batches.next() {
        read.push(batch?);
    }
    let count: usize = read.iter().map(|batch| batch.len()).sum();
    if count != rows.len() {
        let problem = malformed(format!("a row group has {count} of {} rows that were read", rows.len()));
        return Err(DataError::new(table.files.get(group.file).location, problem));
    }
    Ok(read)
}

impl DecodedRows {
    /// Returns the batch that has row `row`, which is number `number` of the rows that were asked for, and
    /// the index of the row in the batch.
    pub(super) fn locate(&self, row: usize, mut number: usize) -> (&Arc<Batch>, usize) {
        match self {
            Self::All(decoded) => decoded.locate(row),
            Self::Some(batches) => {
                let holds = |batch: &&Arc<Batch>| match number.checked_sub(batch.len()) {
                    Some(rest) => {
                        number = rest;
                        false
                    }
                    None => true,
                };
                let batch = batches.iter().find(holds).expect("`read_rows` has checked the number of rows");
                (batch, number)
            }
        }
    }
}
