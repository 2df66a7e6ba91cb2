//! `steady`: page faults, allocations and shared memory in the middle of an epoch. The batches have 38.5 MB,
//! and main reads every page of them. In steady state there should be no page faults and no allocations of
//! the size of a batch, and shared memory should not grow.

use anyhow::{Context, ensure};
use loader_core::{DataLoader, Iter, Tensor};
use serde::Serialize;

use crate::{
    bandwidth::{of_every_page, quarter},
    datasets::{self, CountedImages, Same},
    options::{Options, Shape},
    system,
};

const BATCHES: usize = 400;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// Number of batches in the middle half of the epoch. The other figures are from this half.
    batches: usize,
    batch_bytes: usize,
    main_faults: i64,
    main_allocations: Option<u64>,
    main_allocated_bytes: Option<u64>,
    worker_faults: Vec<u64>,
    worker_allocations: Option<Vec<u64>>,
    worker_allocated_bytes: Option<Vec<u64>>,
    /// Shared memory at five moments of the middle half.
    shared_memory_bytes: Vec<u64>,
}

type Batch = (Tensor<f32>, Tensor<u64>);

/// What this process and the workers have counted so far.
struct Counters {
    main_faults: i64,
    /// Number of main's allocations, and their bytes; zeros if the allocator does not count.
    main_allocated: [u64; 2],
    worker_faults: Vec<u64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let total = options.batches.unwrap_or(BATCHES);
    let workers = options.workers;
    ensure!(workers > 0, "`steady` needs at least one worker");
    ensure!(total >= 40 * workers, "{total} batches are too few for {workers} workers");
    let images = Same::new(total * options.batch_size(), Shape::Image, quarter)?;
    let loader = DataLoader::builder(CountedImages(images)).options(options.loader()).build()?;
    let (first, last) = (total / 4, total * 3 / 4);
    let mut iter = loader.iter()?;
    let (mut before, mut after) = (None, None);
    let (mut shared, mut batch_bytes) = (Vec::new(), 0);
    // For each worker, the counts in its last batch before the middle half and in its last batch within it.
    let mut allocated = vec![[[0; 2]; 2]; workers];
    for number in 0..=last {
        let (images, counts): Batch = iter.next().context("the epoch is too short")??;
        std::hint::black_box(of_every_page(images.as_slice()).sum::<f32>());
        batch_bytes = images.as_bytes().len();
        let worker = iter.last_batch().and_then(|info| info.worker).context("a batch without a worker")?;
        allocated[worker][usize::from(number > first)] = latest(&counts);
        drop((images, counts));
        if number == first {
            before = Some(read_counters(&iter)?);
        } else if number == last {
            after = Some(read_counters(&iter)?);
        }
        if number >= first && (number - first) % ((last - first) / 4) == 0 {
            shared.push(iter.report().shared_memory_bytes);
        }
    }
    let (before, after) = before.zip(after).context("the epoch is too short")?;
    let counted = after.main_allocated[0] > 0;
    let of_workers = |counter: usize| {
        counted.then(|| allocated.iter().map(|[before, after]| after[counter] - before[counter]).collect())
    };
    system::print(&Line {
        loader: "ours",
        options,
        batches: last - first,
        batch_bytes,
        main_faults: after.main_faults - before.main_faults,
        main_allocations: counted.then_some(after.main_allocated[0] - before.main_allocated[0]),
        main_allocated_bytes: counted.then_some(after.main_allocated[1] - before.main_allocated[1]),
        worker_faults: after.worker_faults.iter().zip(&before.worker_faults).map(|(a, b)| a - b).collect(),
        worker_allocations: of_workers(0),
        worker_allocated_bytes: of_workers(1),
        shared_memory_bytes: shared,
    })
}

/// Returns the counts of the last sample: what the worker had allocated when it loaded that sample.
fn latest(counts: &Tensor<u64>) -> [u64; 2] {
    let last = counts.row(counts.shape()[0] - 1);
    [last[0], last[1]]
}

fn read_counters(iter: &Iter<Batch>) -> anyhow::Result<Counters> {
    Ok(Counters {
        main_faults: system::minor_faults()?,
        main_allocated: datasets::allocated(),
        worker_faults: iter.report().workers.iter().map(|worker| worker.page_faults).collect(),
    })
}
