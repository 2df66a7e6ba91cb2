//! Encodes a batch into its slot, or into a larger slot.

use std::{
    io,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use loader_core::internal::{EncodeBatch, to_failure};
use loader_ipc::{
    ChunkError, Loan, SlotMemory,
    arena::{Arena, EncodeError, Encoded},
    end_if_forked,
    frame::{Failure, Stage},
    schema::Schema,
};

/// Why a batch is not in its slot.
pub(crate) enum EncodeFailure {
    /// The slot is too small. The batch needs a slot of `needed` bytes.
    TooLarge {
        needed: usize,
    },
    Failed(Failure),
}

/// Encodes a batch. The batch's `Serialize` is user code and may fail or panic.
pub(crate) fn encode(batch: &dyn EncodeBatch, arena: &mut Arena) -> Result<Encoded, EncodeFailure> {
    match catch_unwind(AssertUnwindSafe(|| batch.encode(arena))) {
        Ok(Ok(encoded)) => Ok(encoded),
        Ok(Err(EncodeError::TooLarge { needed })) => Err(EncodeFailure::TooLarge { needed }),
        Ok(Err(error)) => Err(EncodeFailure::Failed(Failure::to_send(error.to_string()))),
        Err(payload) => Err(EncodeFailure::Failed(to_failure(&*payload, Stage::Send, None))),
    }
}

/// Returns the schema of a batch. The batch's `Serialize` is user code and may panic.
pub(crate) fn schema(batch: &dyn EncodeBatch) -> Result<Schema, Failure> {
    let schema = catch_unwind(AssertUnwindSafe(|| batch.schema()));
    // The user code may have forked, and only the worker may write to the slot.
    end_if_forked();
    schema.map_err(|payload| to_failure(&*payload, Stage::Send, None))
}

/// A batch that waits for a larger slot.
pub(crate) enum WaitingBatch {
    /// The batch that collation has made. Its tensors may be in the slot that is too small.
    InSlot(Box<dyn EncodeBatch>),
    /// The batch in private memory, encoded exactly as it will be in the larger slot.
    Copied(Arc<SlotMemory>, Encoded),
}

impl WaitingBatch {
    /// Copies the batch, which takes `needed` bytes, from its slot to private memory.
    pub(crate) fn copy_out(self, needed: usize) -> Result<Self, Failure> {
        let Self::InSlot(batch) = &self else { return Ok(self) };
        let no_memory =
            |error: io::Error| Failure::to_send(format!("there is no memory to copy the batch: {error}"));
        let len = NonZeroUsize::new(needed).ok_or_else(|| no_memory(io::ErrorKind::InvalidInput.into()))?;
        let memory = SlotMemory::of_this_process(len).map_err(no_memory)?;
        let loan = memory.lend(()).expect("new memory is not lent");
        let encoded = encode_again(&**batch, &mut Arena::in_slot(loan), needed)?;
        Ok(Self::Copied(memory, encoded))
    }

    /// Encodes or copies the batch into a slot.
    pub(crate) fn encode(self, mut slot: Loan, needed: usize) -> Result<Encoded, Failure> {
        match self {
            Self::InSlot(batch) => encode_again(&*batch, &mut Arena::in_slot(slot), needed),
            Self::Copied(memory, encoded) => {
                let not_copied =
                    |error: ChunkError| Failure::to_send(format!("the batch cannot be copied: {error}"));
                let mut copy = memory.lend(()).expect("`copy_out` has dropped its arena");
                let end = usize::try_from(encoded.start + encoded.len).expect("the encoding is in memory");
                let bytes = copy.take(0..end).map_err(not_copied)?;
                slot.put(0, bytes.as_bytes()).map_err(not_copied)?;
                Ok(encoded)
            }
        }
    }
}

/// Encodes a batch again. The first encoding needed `needed` bytes.
fn encode_again(batch: &dyn EncodeBatch, arena: &mut Arena, needed: usize) -> Result<Encoded, Failure> {
    encode(batch, arena).map_err(|error| match error {
        EncodeFailure::Failed(failure) => failure,
        EncodeFailure::TooLarge { needed: again } => Failure::to_send(format!(
            "the batch needed {needed} bytes when it was first encoded, but {again} bytes the second time"
        )),
    })
}
