//! `memcpy`: the time to copy a 38.5 MB batch without a loader, which is the bound for `bandwidth`.

use std::{hint::black_box, time::Instant};

use serde::Serialize;

use crate::{
    bandwidth::quarter,
    options::{Options, Shape},
    system::{self, Spread},
};

const BATCHES: usize = 100;
/// Number of buffers that are used in turn: the number of slots that a loader uses in steady state.
const BUFFERS: usize = 2;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// Time to copy one sample into each row of a batch, as a loader must do, with two batches in turn.
    us_per_batch: Spread,
    /// Time to copy one batch into another, which must also read the bytes from memory.
    whole_us_per_batch: Spread,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let batches = options.batches.unwrap_or(BATCHES);
    let elements = Shape::Image.dimensions().iter().product();
    let sample: Vec<f32> = (0..elements).map(quarter).collect();
    // The buffers are written once, so that every page is mapped.
    let mut buffers: Vec<Vec<f32>> = (0..BUFFERS).map(|_| sample.repeat(options.batch_size())).collect();

    let rows = (0..options.epochs()).map(|_| {
        microseconds(batches, |number| {
            let batch = &mut buffers[number % BUFFERS];
            for row in batch.chunks_exact_mut(elements) {
                row.copy_from_slice(black_box(&sample));
            }
            black_box(batch.as_slice());
        })
    });
    let us_per_batch = Spread::of(rows.collect());
    let (target, source) = buffers.split_at_mut(1);
    let whole = (0..options.epochs()).map(|_| {
        microseconds(batches, |_| {
            target[0].copy_from_slice(black_box(&source[0]));
            black_box(target[0].as_slice());
        })
    });
    let whole_us_per_batch = Spread::of(whole.collect());
    system::print(&Line { loader: "ours", options, batches, us_per_batch, whole_us_per_batch })
}

/// Returns the mean time of `batches` calls in microseconds.
fn microseconds(batches: usize, mut copy: impl FnMut(usize)) -> f64 {
    let started = Instant::now();
    for number in 0..batches {
        copy(number);
    }
    started.elapsed().as_secs_f64() * 1e6 / batches as f64
}
