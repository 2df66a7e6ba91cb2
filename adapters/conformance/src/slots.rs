//! How long a tensor of a framework holds the slot of its batch, with real workers.

use std::{collections::HashSet, thread, time::Duration};

use loader::{DType, DataLoader, Error, Iter, SlotError, prelude::*};
use serde::{Deserialize, Serialize};

use crate::{Adapter, Copies, watchdog::Watchdog};

/// Bytes in a batch.
const BATCH: usize = 128 << 10;
/// Bytes of shared memory: some slots, and far fewer than batches.
const LIMIT: u64 = 1 << 20;
/// Batches in an epoch.
const BATCHES: usize = 64;

/// Every byte of sample `n` is `n`.
#[derive(Serialize, Deserialize)]
struct Numbered;

impl Dataset for Numbered {
    type Sample = Vec<f32>;

    fn len(&self) -> usize {
        BATCHES
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<f32>> {
        Ok(vec![f32::from_le_bytes([index as u8; 4]); BATCH / 2 / 4])
    }
}

/// Batches of shape `[2, n]`: each has a sample twice.
fn epoch() -> Iter<Tensor<f32>> {
    let loader: DataLoader<Tensor<f32>> = DataLoader::builder(Numbered)
        .collate(|samples: Vec<Vec<f32>>| Ok(Tensor::from_vec(samples.concat(), [2, BATCH / 8])?))
        .sampler((0..BATCHES).flat_map(|n| [n, n]).collect::<Vec<_>>())
        .batch_size(2)
        .num_workers(1)
        .shared_memory_limit(LIMIT)
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap();
    loader.iter().unwrap()
}

/// Exports the next batch. Only the tensor of the framework is left of it.
fn export_next<A: Adapter>(batches: &mut Iter<Tensor<f32>>) -> A::Tensor {
    export::<A>(batches.next().expect("there are more batches").unwrap())
}

fn export<A: Adapter>(batch: Tensor<f32>) -> A::Tensor {
    assert!(batch.is_shared_memory());
    A::export(batch.into()).unwrap()
}

/// While a tensor of the framework lives, or a view of it, its bytes stay the same and no other batch has
/// its address. After the last one was dropped, the slot is reused.
pub fn a_slot_is_reused_after_the_last_tensor_only<A: Adapter>() {
    let _watchdog = Watchdog::start();
    let mut batches = epoch();
    let first = export_next::<A>(&mut batches);
    let address = A::inspect(&first).address;
    let kept = A::last_row(&first).unwrap_or(first);
    for number in 1..BATCHES / 2 {
        let next = A::inspect(&export_next::<A>(&mut batches));
        assert_eq!((next.dtype, next.bytes), (DType::F32, vec![number as u8; BATCH]));
        if A::COPIES == Copies::Zero {
            assert_ne!(next.address, address, "the slot of batch 0 is reused for batch {number}");
        }
        let kept = A::inspect(&kept).bytes;
        assert!(!kept.is_empty() && kept.iter().all(|&byte| byte == 0), "batch {number} has changed batch 0");
    }
    drop(kept);
    let addresses: Vec<_> =
        (BATCHES / 2..BATCHES).map(|_| A::inspect(&export_next::<A>(&mut batches)).address).collect();
    if A::COPIES == Copies::Zero {
        assert!(addresses.contains(&address), "the slot of batch 0 is not reused");
    }
}

/// Tensors of the framework that borrow hold slots until the limit is reached, and the error says how many.
/// When they are dropped, the epoch goes on. Tensors that are copies hold none.
pub fn held_tensors_hold_slots_unless_copied<A: Adapter>() {
    let _watchdog = Watchdog::start();
    let (mut held, mut count, mut refused) = (Vec::new(), 0, 0);
    for batch in epoch() {
        match batch {
            Ok(batch) => {
                held.push(export::<A>(batch));
                let bytes = A::inspect(held.last().expect("one was pushed")).bytes;
                assert!(bytes.iter().all(|&byte| usize::from(byte) == count));
                count += 1;
            }
            Err(Error::SharedMemoryExhausted {
                source: SlotError::LimitReached { held: counted, .. },
                ..
            }) => {
                assert_eq!(counted, held.len());
                assert!(counted > 1, "the limit leaves no room for held batches");
                refused += 1;
                held.clear();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(count, BATCHES);
    assert_eq!(refused > 0, A::COPIES == Copies::Zero, "the limit was reached {refused} times");
}

/// A tensor of the framework can be read and dropped on another thread, which frees its slot.
pub fn tensors_are_dropped_on_other_threads<A: Adapter>() {
    let _watchdog = Watchdog::start();
    let mut batches = epoch();
    for number in 0..BATCHES {
        let exported = export_next::<A>(&mut batches);
        let bytes = thread::spawn(move || A::inspect(&exported).bytes).join().unwrap();
        assert!(bytes.iter().all(|&byte| usize::from(byte) == number));
    }
}

/// With `convert_ahead`, a thread exports the batches: they arrive in order, and their slots are reused. After the
/// iterator was dropped in the middle of an epoch, a tensor that it has returned stays the same.
pub fn batches_are_exported_ahead<A: Adapter>() {
    let _watchdog = Watchdog::start();
    let ahead = || epoch().convert_ahead(2, |batch| Ok(export::<A>(batch))).unwrap();
    let is_batch = |tensor: &A::Tensor, number: usize| A::inspect(tensor).bytes == vec![number as u8; BATCH];
    let mut addresses = HashSet::new();
    let mut count = 0;
    for (number, exported) in ahead().enumerate() {
        let exported = exported.unwrap();
        assert!(is_batch(&exported, number), "batch {number}");
        addresses.insert(A::inspect(&exported).address);
        count += 1;
    }
    assert_eq!(count, BATCHES);
    if A::COPIES == Copies::Zero {
        let most = LIMIT as usize / BATCH;
        assert!(addresses.len() <= most, "{} slots, but there is room for {most}", addresses.len());
    }
    let mut exported = ahead();
    drop(exported.next());
    let kept = exported.next().unwrap().unwrap();
    drop(exported);
    assert!(is_batch(&kept, 1));
}

/// A batch has several tensors in one slot. Writing to a tensor of the framework changes none of the others.
pub fn writing_leaves_other_tensors_of_the_slot_alone<A: Adapter>() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Numbered)
        .collate(|samples: Vec<Vec<f32>>| {
            let tensor = |len| Tensor::from_slice(&samples[0][..len], [len]);
            Ok((tensor(3)?, tensor(17)?, tensor(1)?))
        })
        .num_workers(1)
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap();
    for (number, batch) in loader.iter().unwrap().enumerate().take(3) {
        let (before, written, after) = batch.unwrap();
        assert!(before.is_shared_memory() && written.is_shared_memory() && after.is_shared_memory());
        let neighbour = A::export(after.into()).unwrap();
        let written = A::fill(A::export(written.into()).unwrap(), 0.5);
        assert_eq!(A::inspect(&written).bytes, 0.5_f32.to_le_bytes().repeat(17));
        assert_eq!(before.as_bytes(), [number as u8; 3 * 4]);
        assert_eq!(A::inspect(&neighbour).bytes, [number as u8; 4]);
    }
}
