//! A main process with `pin_memory`: `test-pinning WAY WORKERS`. It prints what it saw as one JSON line.
#![allow(unsafe_code)] // for `fork`, and for a DLPack tensor over page-locked memory

use std::{
    process,
    sync::{Arc, Mutex},
    thread,
};

use loader_core::{Builder, Element, Warning, collate::Batch, kind::DatasetKind, prelude::*};
use loader_tests::{
    datasets::{AsStream, Count, Large, Noise},
    driver_log::DriverLog,
};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use serde::{Deserialize, Serialize};

/// What the program saw of its batches.
#[derive(Default, Serialize)]
struct Seen {
    pid: u32,
    batches: usize,
    /// Batches of which `is_pinned` is true for every tensor.
    pinned: usize,
    /// Batches whose tensors are all in memory that is registered with the driver.
    registered: usize,
    content: u64,
    warnings: Vec<String>,
}

#[expect(clippy::too_many_lines, reason = "one arm for each way")]
fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_default();
    let workers: usize = arguments.next().unwrap_or_default().parse()?;
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let mut seen = match way.as_str() {
        "strings" => {
            let loader = prepare(DataLoader::builder(Noise { count: 40 }), workers, &warnings).build()?;
            two_epochs(&loader, |(numbers, noise, names): &(Tensor<u64>, Tensor<f32>, Vec<String>)| {
                let first = format!("sample {}", numbers.as_slice()[0]);
                assert_eq!(names[0], first);
                vec![looked_at(numbers), looked_at(noise)]
            })?
        }
        "nested" => {
            let loader = prepare(DataLoader::builder(Nested), workers, &warnings).build()?;
            two_epochs(&loader, |batch: &OuterBatch| {
                assert_eq!(batch.inner.name.len(), batch.label.len());
                vec![looked_at(&batch.label), looked_at(&batch.inner.pixels)]
            })?
        }
        // The user's own type of batch and collate function.
        "custom" => {
            let loader = prepare(DataLoader::builder(Large { count: 40, bytes: 100 }), workers, &warnings)
                .collate(|samples| {
                    let lengths: Vec<u64> = samples.iter().map(|sample| sample.len() as u64).collect();
                    let len = samples.concat().len();
                    Ok(Packed {
                        bytes: Tensor::from_vec(samples.concat(), [len])?,
                        lengths: Tensor::from_slice(&lengths, [lengths.len()])?,
                    })
                })
                .build()?;
            two_epochs(&loader, |batch: &Packed| vec![looked_at(&batch.bytes), looked_at(&batch.lengths)])?
        }
        // The program ends in the middle of an epoch, with iterator and batch still alive.
        "early" => {
            let loader = prepare(DataLoader::builder(Noise { count: 40 }), workers, &warnings)
                .persistent_workers(workers > 0)
                .build()?;
            let mut batches = loader.iter()?;
            let batch = batches.next().expect("a batch")?;
            let mut seen = Seen { pid: process::id(), ..Seen::default() };
            seen.add(&[looked_at(&batch.0), looked_at(&batch.1)]);
            println!("{}", serde_json::to_string(&seen)?);
            return Ok(());
        }
        // Each batch is larger than the first slots, which are replaced.
        "large" => {
            let loader =
                prepare(DataLoader::builder(Large { count: 40, bytes: 100_000 }), workers, &warnings)
                    .build()?;
            two_epochs(&loader, |batch: &Tensor<u8>| vec![looked_at(batch)])?
        }
        "stream" => {
            let loader = prepare(DataLoader::stream(AsStream(Count(40))), workers, &warnings).build()?;
            two_epochs(&loader, |batch: &Tensor<u64>| vec![looked_at(batch)])?
        }
        "threads" => {
            let loader = prepare(DataLoader::builder(Noise { count: 40 }), workers, &warnings).build()?;
            on_another_thread(loader)?
        }
        "fork" => {
            let loader = prepare(DataLoader::builder(Noise { count: 40 }), workers, &warnings).build()?;
            in_a_fork(&loader, &warnings)?
        }
        #[cfg(feature = "cuda")]
        "dlpack" => {
            let loader = prepare(DataLoader::builder(Noise { count: 400 }), workers, &warnings).build()?;
            dlpack::exports(&loader)?
        }
        _ => anyhow::bail!("unknown way: {way}"),
    };
    seen.pid = process::id();
    seen.warnings.append(&mut warnings.lock().unwrap());
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn prepare<K: DatasetKind>(
    builder: Builder<K>,
    workers: usize,
    warnings: &Arc<Mutex<Vec<String>>>,
) -> Builder<K> {
    let warnings = Arc::clone(warnings);
    let note = move |warning: &Warning| {
        if matches!(warning, Warning::NotPinned { .. }) {
            warnings.lock().unwrap().push(warning.to_string());
        }
    };
    builder.batch_size(4).seed(7).num_workers(workers).pin_memory(true).on_warning(note)
}

/// `is_pinned` of a tensor, and its bytes.
type Look<'a> = (bool, &'a [u8]);

fn looked_at<T: Element>(tensor: &Tensor<T>) -> Look<'_> {
    (tensor.is_pinned(), tensor.as_bytes())
}

/// Loads two epochs while the last two batches are held.
fn two_epochs<B: Batch>(
    loader: &DataLoader<B>,
    look: impl for<'a> Fn(&'a B) -> Vec<Look<'a>>,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let mut digest = BatchDigest::new();
    for _ in 0..2 {
        let mut batches = loader.iter()?;
        let mut held = Vec::new();
        while let Some(batch) = batches.next() {
            held.push(batch?);
            let batch = held.last().expect("just pushed");
            digest.add(&batches.last_batch().expect("a batch was returned").indices, batch);
            seen.add(&look(batch));
            if held.len() > 2 {
                held.remove(0);
            }
        }
    }
    seen.content = digest.content();
    Ok(seen)
}

impl Seen {
    fn add(&mut self, tensors: &[Look<'_>]) {
        self.batches += 1;
        self.pinned += usize::from(tensors.iter().all(|(pinned, _)| *pinned));
        let log = DriverLog::read(std::env::var("DRIVER_STUB_LOG").unwrap_or_default(), process::id());
        self.registered += usize::from(tensors.iter().all(|(_, bytes)| log.contains(bytes)));
    }
}

/// A thread that has never called the driver drops all batches after the loader was dropped.
fn on_another_thread(loader: DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)>) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let mut held = Vec::new();
    for batch in loader.iter()? {
        let batch = batch?;
        seen.add(&[looked_at(&batch.0), looked_at(&batch.1)]);
        held.push(batch);
    }
    drop(loader);
    thread::spawn(move || drop(held)).join().expect("dropping does not panic");
    Ok(seen)
}

/// A forked child drops its parent's batch and loads with its parent's loader.
fn in_a_fork(
    loader: &DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)>,
    warnings: &Mutex<Vec<String>>,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let held = loader.epoch(0)?.next().expect("a batch")?;
    // SAFETY: no other thread of this process holds a lock that the child needs: the iterator was dropped,
    // which ended its threads.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(held);
            let batches: Vec<_> = loader.epoch(0)?.collect::<Result<_, _>>()?;
            let unpinned = batches.iter().all(|(numbers, ..)| !numbers.is_pinned());
            let warned = warnings.lock().unwrap().iter().filter(|text| text.contains("forked")).count();
            process::exit(if unpinned && batches.len() == 10 && warned == 1 { 0 } else { 1 });
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None)?;
            anyhow::ensure!(matches!(status, WaitStatus::Exited(_, 0)), "the child: {status:?}");
            seen.add(&[looked_at(&held.0), looked_at(&held.1)]);
        }
    }
    Ok(seen)
}

/// DLPack tensors of page-locked batches.
#[cfg(feature = "cuda")]
mod dlpack {
    use std::slice;

    use anyhow::ensure;
    use loader_core::Iter;
    use loader_dlpack::{Dlpack, IntoDlpack};

    use super::*;

    type Batch = (Tensor<u64>, Tensor<f32>, Vec<String>);

    /// Exports two batches, one with each method. While the DLPack tensor lives, it must keep its elements, whatever
    /// happens to the slot.
    pub(super) fn exports(loader: &DataLoader<Batch>) -> anyhow::Result<Seen> {
        let mut seen = Seen::default();
        let mut batches = loader.iter()?;

        let (numbers, slot, elements) = next(&mut batches, &mut seen)?;
        let copy = numbers.into_dlpack()?;
        ensure!(address(&copy)? != slot, "page-locked memory is exported without a copy");
        ensure!(reaches(&mut batches, slot, 40)?, "a copy holds the slot");
        ensure!(bytes(&copy)? == elements, "the copy has changed");

        let (numbers, slot, elements) = next(&mut batches, &mut seen)?;
        // SAFETY: no device copies from the memory.
        let lent = unsafe { numbers.into_dlpack_pinned() }?;
        ensure!(address(&lent)? == slot, "`into_dlpack_pinned` has copied");
        ensure!(!reaches(&mut batches, slot, 20)?, "the slot is reused before the DLPack tensor is dropped");
        ensure!(bytes(&lent)? == elements, "the slot has changed");
        drop(lent);
        ensure!(
            reaches(&mut batches, slot, 40)?,
            "the slot is not reused after the DLPack tensor was dropped"
        );
        Ok(seen)
    }

    /// Returns the first tensor of the next batch, its address and its bytes.
    fn next(batches: &mut Iter<Batch>, seen: &mut Seen) -> anyhow::Result<(Tensor<u64>, usize, Vec<u8>)> {
        let (numbers, noise, _) = batches.next().expect("a batch")?;
        seen.add(&[looked_at(&numbers), looked_at(&noise)]);
        let (address, bytes) = (numbers.as_bytes().as_ptr() as usize, numbers.as_bytes().to_vec());
        Ok((numbers, address, bytes))
    }

    /// True if the first tensor of one of the next `count` batches has this address.
    fn reaches(batches: &mut Iter<Batch>, address: usize, count: usize) -> anyhow::Result<bool> {
        for _ in 0..count {
            let (numbers, ..) = batches.next().expect("a batch")?;
            if numbers.as_bytes().as_ptr() as usize == address {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn address(managed: &Dlpack) -> anyhow::Result<usize> {
        Ok(managed.validate()?.data_ptr() as usize)
    }

    fn bytes(managed: &Dlpack) -> anyhow::Result<&[u8]> {
        let tensor = managed.validate()?;
        // SAFETY: the managed tensor owns that many bytes at this address.
        Ok(unsafe { slice::from_raw_parts(tensor.data_ptr().cast(), tensor.num_bytes()) })
    }
}

/// A struct in a struct.
#[derive(Serialize, Deserialize)]
struct Nested;

#[derive(Sample)]
struct Outer {
    label: u32,
    inner: Inner,
}

#[derive(Sample)]
struct Inner {
    pixels: [f32; 5],
    name: String,
}

impl Dataset for Nested {
    type Sample = Outer;

    fn len(&self) -> usize {
        40
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Outer> {
        let inner = Inner { pixels: [index as f32; 5], name: index.to_string() };
        Ok(Outer { label: index as u32, inner })
    }
}

/// Rows of any length, concatenated.
#[derive(Serialize, Deserialize)]
struct Packed {
    bytes: Tensor<u8>,
    lengths: Tensor<u64>,
}
