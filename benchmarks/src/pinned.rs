//! `loader-bench-pinned`: copies batches to a GPU, from page-locked and from ordinary memory. It needs
//! NVIDIA's driver and a device. The program uses `cudarc`, as a user's program does; the loader calls the
//! same driver without it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use cudarc::driver::{CudaContext, CudaStream};
use loader_core::prelude::*;
use serde::{Deserialize, Serialize};

/// Copies batches of f32 images to a GPU, from page-locked and from ordinary memory; prints JSON
#[derive(Debug, Parser)]
struct Options {
    /// Number of images per batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Width and height of an image of three channels, in pixels
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// Number of worker processes; 0 loads in this process
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Number of batches to copy, after ten batches of warm-up
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// Number of the device
    #[arg(long, default_value_t = 0)]
    device: usize,
}

const WARM_UP: usize = 10;

#[derive(Serialize)]
struct Line {
    memory: &'static str,
    workers: usize,
    bytes: usize,
    batches: usize,
    /// Rate of a copy, from its start until the device reports its end.
    gigabytes_per_second: f64,
    /// Median time until the call that starts a copy returns. From ordinary memory this includes the copy.
    microseconds_to_start: f64,
    /// Median time of a copy, from its start until the device reports its end.
    microseconds_to_end: f64,
}

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let options = Options::parse();
    // The context must exist before the loader is built, which then pins memory for this device.
    let context = CudaContext::new(options.device).context("there is no such device")?;
    let stream = context.new_stream()?;
    for pin_memory in [false, true] {
        println!("{}", serde_json::to_string(&measure(&options, &stream, pin_memory)?)?);
    }
    Ok(())
}

fn measure(options: &Options, stream: &Arc<CudaStream>, pin_memory: bool) -> anyhow::Result<Line> {
    let pixels = 3 * options.size * options.size;
    let samples = options.batch_size * (options.batches + WARM_UP);
    let loader = DataLoader::builder(Images { samples, pixels })
        .batch_size(options.batch_size)
        .num_workers(options.workers)
        .pin_memory(pin_memory)
        .build()?;
    let mut device = stream.alloc_zeros::<f32>(options.batch_size * pixels)?;
    stream.synchronize()?;
    let mut times = Vec::new();
    for batch in loader.iter()? {
        let batch = batch?;
        ensure!(batch.is_pinned() == pin_memory, "is_pinned is {}", batch.is_pinned());
        let started = Instant::now();
        stream.memcpy_htod(batch.as_slice(), &mut device)?;
        let returned = started.elapsed();
        // Waits for the end of the copy, because the batch must live until then.
        stream.synchronize()?;
        times.push((returned, started.elapsed()));
    }
    let times = times.get(WARM_UP..).context("too few batches")?;
    let (start, end) = (median(times.iter().map(|time| time.0)), median(times.iter().map(|time| time.1)));
    let bytes = options.batch_size * pixels * size_of::<f32>();
    Ok(Line {
        memory: if pin_memory { "page-locked" } else { "ordinary" },
        workers: options.workers,
        bytes,
        batches: times.len(),
        gigabytes_per_second: bytes as f64 / end.as_secs_f64() / 1e9,
        microseconds_to_start: start.as_secs_f64() * 1e6,
        microseconds_to_end: end.as_secs_f64() * 1e6,
    })
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort();
    times[times.len() / 2]
}

/// Images that cost only the time to write them.
#[derive(Serialize, Deserialize)]
struct Images {
    samples: usize,
    pixels: usize,
}

impl Dataset for Images {
    type Sample = Vec<f32>;

    fn len(&self) -> usize {
        self.samples
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<f32>> {
        Ok(vec![index as f32; self.pixels])
    }
}
