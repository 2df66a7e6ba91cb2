//! The decoded row groups of a shuffled shard.

use loader_core::{DatasetMemory, MemoryReservation};
use serde::de::DeserializeOwned;

use super::{
    batches::{KeptRows, NoRoom, Selection},
    blocks::{Drawn, Draws},
    file::malformed,
    table::Table,
};
use crate::{
    arrow_rows::Samples,
    error::{DataProblem, Result},
    source::{NextPart, ReadAhead},
};

/// The rows of a shard in the order of `draws`. A row group stays decoded from its first row to its last.
#[derive(Debug)]
pub(super) struct ShuffledGroups {
    draws: Draws,
    /// The open row groups, or why they cannot be decoded.
    decoded: Vec<(usize, Result<Kept, String>)>,
    /// Maximum number of bytes of `decoded`.
    limit: u64,
    /// The account from which these bytes are reserved.
    memory: DatasetMemory,
    /// A row group that is not decoded, which is being fetched if it lies on a server.
    ahead: NextPart<ReadAhead>,
    /// False if all files are local.
    reads_ahead: bool,
    /// True if the next row group is fetched once the current one is decoded, and not while it is decoded.
    begins_after_decoding: bool,
}

/// A decoded row group, and the reservation of its bytes.
type Kept = (KeptRows, MemoryReservation);

impl ShuffledGroups {
    pub(super) fn new(table: &Table, draws: Draws, limit: u64, memory: DatasetMemory) -> Self {
        Self {
            draws,
            decoded: Vec::new(),
            limit,
            memory,
            ahead: NextPart::default(),
            reads_ahead: table.is_remote(),
            begins_after_decoding: false,
        }
    }

    /// Returns the next row; `None` at the end. Each row gives one sample or one error.
    pub(super) fn next<R: DeserializeOwned + 'static>(
        &mut self,
        table: &Table,
        samples: &Samples,
    ) -> Option<Result<R>> {
        let drawn = self.draws.next()?;
        let sample = self.row(table, samples, drawn);
        if drawn.is_last {
            self.decoded.retain(|(group, _)| *group != drawn.group);
        }
        Some(sample)
    }

    /// Returns a row. Decodes its row group if no row of it was drawn before.
    fn row<R: DeserializeOwned + 'static>(
        &mut self,
        table: &Table,
        samples: &Samples,
        drawn: Drawn,
    ) -> Result<R> {
        let group = table.group(drawn.group);
        let failed = |problem| table.error(group, drawn.row, problem);
        let position = self.decoded.iter().position(|(group, _)| *group == drawn.group);
        let position = match position {
            Some(position) => position,
            None => match self.decode(table, drawn.group) {
                Ok(rows) => self.push(drawn.group, Ok(rows)),
                Err(problem) => {
                    self.push(drawn.group, Err(problem.to_string()));
                    return Err(failed(problem));
                }
            },
        };
        match &self.decoded[position].1 {
            Ok((rows, _)) => {
                let (batch, at) = rows.locate(drawn.row);
                samples.sample(batch, at).map_err(failed)
            }
            Err(reason) => Err(failed(malformed(reason))),
        }
    }

    /// Adds a row group to `decoded`. Returns its position there.
    fn push(&mut self, group: usize, rows: Result<Kept, String>) -> usize {
        self.decoded.push((group, rows));
        self.decoded.len() - 1
    }

    fn decode(&mut self, table: &Table, index: usize) -> Result<Kept, DataProblem> {
        let group = table.group(index);
        // This comes before the reservation, which could drop what was read ahead.
        let ahead = self.claim(index);
        let of_others = self.decoded.iter().filter_map(|(_, rows)| rows.as_ref().ok());
        let of_others: u64 = of_others.map(|(_, reserved)| reserved.bytes()).sum();
        let mut reserved = self.memory.reserve(group.bytes)?;
        let batches = table.read(group, Selection::From(0), ahead).map_err(|error| error.problem)?;
        if !self.begins_after_decoding {
            self.begin_next(table, index);
        }
        let limit = self.limit.saturating_sub(of_others);
        let decoded = KeptRows::read(batches, group.rows, limit, &mut reserved);
        if self.begins_after_decoding {
            self.begin_next(table, index);
        }
        match decoded.map_err(|error| error.problem)? {
            Ok(rows) => Ok((rows, reserved)),
            Err(NoRoom { refused: Some(refused), .. }) => Err(refused.into()),
            Err(NoRoom { bytes, .. }) => Err(too_large(of_others.saturating_add(bytes), self.limit)),
        }
    }

    /// Returns what was read ahead of a row group. If a reservation has dropped it, the shard from now on begins
    /// to read the next row group ahead only after it has decoded the current one. Otherwise the shard's own reservations
    /// for decoded rows would drop each row group that was read ahead, and the shard would fetch it twice.
    fn claim(&mut self, index: usize) -> Option<ReadAhead> {
        let claimed = self.ahead.take(index as u64)?.claim();
        self.begins_after_decoding |= claimed.is_none();
        claimed
    }

    /// Starts to fetch the row group that is decoded after row group `index`.
    fn begin_next(&mut self, table: &Table, index: usize) {
        if !self.reads_ahead {
            return;
        }
        let is_decoded =
            |group: usize| group == index || self.decoded.iter().any(|(decoded, _)| *decoded == group);
        if let Some(next) = self.draws.decoded_next(is_decoded) {
            self.ahead.begin(next as u64, || table.begin(next, &self.memory));
        }
    }
}

pub(super) fn too_large(len: u64, max: u64) -> DataProblem {
    DataProblem::TooLarge { len, max, option: "block_bytes" }
}
