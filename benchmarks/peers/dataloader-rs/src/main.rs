//! The workloads of the benchmarks, on dataloader-rs, with the same command line, values and JSON lines as
//! `loader-bench`.

mod datasets;
mod images;
mod options;
mod system;

use std::{hint::black_box, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use dataloader_rs::{
    Collator, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler,
    collator::DefaultCollator,
    error::{Error, Result as LoaderResult},
};
use datasets::{
    Concatenate, ConcatenateLabelled, Integers, Names, Repeated, Rows, Stragglers, TOKENS, Tokens,
};
use images::Images;
use options::{DType, Kind, Options, Read, Workload};
use serde_json::json;
use system::{Memory, Spread};

/// Keeps freed memory for later batches. The default allocator returns the memory of each batch to the
/// system, and the next batch takes page faults again. The library's documentation recommends either
/// thresholds of glibc, which do not apply to batches of more than 32 MiB, or another allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[allow(non_upper_case_globals)]
#[unsafe(export_name = "_rjem_malloc_conf")]
static malloc_conf: Option<&'static std::ffi::c_char> = {
    let settings = c"dirty_decay_ms:-1,muzzy_decay_ms:-1";
    // SAFETY: the pointer is to the first byte of a static string that ends in zero.
    Some(unsafe { &*settings.as_ptr() })
};

const PAGE_BYTES: usize = 4096;
const START_SAMPLES: usize = 1_000_000;
/// The first fifth of an epoch is warm-up: prefetched batches and costs that occur only once are in it.
const WARM_UP_DIVISOR: usize = 5;
const MAX_TOKEN_BATCHES: usize = 1000;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.workload {
        Workload::Overhead => overhead(&options),
        Workload::Bandwidth => match options.dtype {
            DType::F32 => bandwidth(&options, |position| position as f32 / 4.0),
            DType::U8 => bandwidth(&options, |position| (position % 251) as u8),
        },
        Workload::Tokens => tokens(&options),
        Workload::Images => images(&options),
        Workload::Start => match options.dataset {
            Kind::Trivial => start(&options, Integers(START_SAMPLES), DefaultCollator),
            Kind::Names => start(&options, Names::new(START_SAMPLES), DefaultCollator),
            Kind::Memory => start(&options, Rows::new(), Concatenate::<f32>::default()),
        },
        Workload::Memory => match options.dataset {
            Kind::Trivial => memory(&options, Integers(START_SAMPLES), DefaultCollator),
            Kind::Names => memory(&options, Names::new(START_SAMPLES), DefaultCollator),
            Kind::Memory => memory(&options, Rows::new(), Concatenate::<f32>::default()),
        },
        Workload::Stragglers => stragglers(&options),
        Workload::Shutdown => shutdown(&options),
    }
}

/// A sampler that the command line chooses. The library's loader is generic over its sampler, so this enum
/// holds both.
enum Order {
    Sequential(SequentialSampler),
    Random(RandomSampler),
}

impl Sampler for Order {
    fn indices(&mut self, length: usize) -> Vec<usize> {
        match self {
            Self::Sequential(sampler) => sampler.indices(length),
            Self::Random(sampler) => sampler.indices(length),
        }
    }
}

fn open<D: Dataset, C: Collator<D::Item>>(
    options: &Options,
    dataset: D,
    collator: C,
    shuffle: bool,
) -> DataLoader<D, Order, C> {
    let order = if shuffle {
        Order::Random(RandomSampler::from_entropy())
    } else {
        Order::Sequential(SequentialSampler)
    };
    let builder = DataLoader::builder(dataset)
        .batch_size(options.batch_size())
        .drop_last(true)
        .num_workers(options.workers)
        .sampler(order)
        .collator(collator);
    match options.prefetch_factor {
        Some(factor) => builder.prefetch_depth(factor * options.workers.max(1)).build(),
        None => builder.build(),
    }
}

fn loaded<B>(batch: LoaderResult<B>) -> anyhow::Result<B> {
    batch.map_err(|error: Error| anyhow::anyhow!(error))
}

/// An element of a batch.
trait Element: Copy + Send + 'static {
    const DTYPE: &'static str;
    fn bits(self) -> u64;
    fn number(self) -> f64;
}

impl Element for f32 {
    const DTYPE: &'static str = "float32";

    fn bits(self) -> u64 {
        self.to_bits().into()
    }

    fn number(self) -> f64 {
        self.into()
    }
}

impl Element for u8 {
    const DTYPE: &'static str = "uint8";

    fn bits(self) -> u64 {
        self.into()
    }

    fn number(self) -> f64 {
        self.into()
    }
}

impl Element for i64 {
    const DTYPE: &'static str = "int64";

    fn bits(self) -> u64 {
        self.cast_unsigned()
    }

    fn number(self) -> f64 {
        self as f64
    }
}

fn ends<T: Element>(batch: &[T]) -> f64 {
    batch[0].number() + batch[batch.len() - 1].number()
}

fn pages<T: Element>(batch: &[T]) -> f64 {
    batch.iter().step_by(PAGE_BYTES / size_of::<T>()).map(|element| element.number()).sum()
}

/// Returns shape, type and checksum of the first batches, which must be equal on all sides. The batches are
/// not shuffled, because each side shuffles in its own way.
fn verify<T, D, C>(
    options: &Options,
    dataset: D,
    collator: C,
    shape: &[usize],
) -> anyhow::Result<serde_json::Value>
where
    T: Element,
    D: Dataset,
    C: Collator<D::Item, Batch = Vec<T>>,
{
    let (mut checksum, mut batches) = (0u64, 0);
    for batch in open(options, dataset, collator, false).iter() {
        let batch = loaded(batch)?;
        ensure!(
            batch.len() == options.batch_size() * shape.iter().product::<usize>(),
            "a batch has the wrong size"
        );
        let sum = (1u64..)
            .zip(&batch)
            .fold(0u64, |sum, (position, element)| sum.wrapping_add(position.wrapping_mul(element.bits())));
        checksum = checksum.wrapping_mul(1_000_003).wrapping_add(sum);
        batches += 1;
    }
    let shape = [&[options.batch_size()], shape].concat();
    Ok(
        json!({ "batches": batches, "shape": shape, "dtype": T::DTYPE, "checksum": format!("{checksum:016x}") }),
    )
}

/// Times of the batches of all epochs.
#[derive(Default)]
struct Timing {
    /// For each epoch, microseconds per batch after the warm-up.
    per_batch: Vec<f64>,
    /// Microseconds between successive batches.
    gaps: Vec<f64>,
    /// Processor time in microseconds.
    cpu: f64,
}

fn epochs<D, C>(
    options: &Options,
    batches: usize,
    loader: &mut DataLoader<D, Order, C>,
    look: impl Fn(&C::Batch) -> f64,
) -> anyhow::Result<Timing>
where
    D: Dataset,
    C: Collator<D::Item>,
{
    let warm_up = batches / WARM_UP_DIVISOR;
    ensure!(batches > warm_up + 1, "{batches} batches are too few");
    let (mut timing, mut seen) = (Timing::default(), 0.0);
    let cpu = system::cpu_microseconds();
    for _ in 0..options.epochs() {
        let mut arrivals = Vec::with_capacity(batches);
        for batch in loader.iter() {
            seen += look(&loaded(batch)?);
            arrivals.push(Instant::now());
        }
        ensure!(arrivals.len() == batches, "{} of {batches} batches", arrivals.len());
        let steady = &arrivals[warm_up..];
        let micros = |from: &Instant, to: &Instant| (*to - *from).as_secs_f64() * 1e6;
        timing.per_batch.push(micros(&steady[0], &steady[steady.len() - 1]) / (steady.len() - 1) as f64);
        timing.gaps.extend(steady.windows(2).map(|pair| micros(&pair[0], &pair[1])));
    }
    black_box(seen);
    timing.cpu = system::cpu_microseconds() - cpu;
    Ok(timing)
}

fn throughput<T, D, C>(
    options: &Options,
    batches: usize,
    shape: &[usize],
    checked: (usize, C),
    dataset: impl Fn(usize) -> anyhow::Result<D>,
    collator: C,
    look: impl Fn(&Vec<T>) -> f64,
) -> anyhow::Result<()>
where
    T: Element,
    D: Dataset,
    C: Collator<D::Item, Batch = Vec<T>>,
{
    let check = verify(options, dataset(checked.0 * options.batch_size())?, checked.1, shape)?;
    let mut loader = open(options, dataset(batches * options.batch_size())?, collator, options.shuffle);
    let timing = epochs(options, batches, &mut loader, look)?;
    system::print(
        options,
        json!({
            "batches": batches,
            "us_per_batch": Spread::of(timing.per_batch),
            "p99_us": system::percentile_99(timing.gaps),
            "cpu_us_per_batch": timing.cpu / (batches * options.epochs()) as f64,
            "check": check,
        }),
    )
}

fn overhead(options: &Options) -> anyhow::Result<()> {
    let batches = options.batches.unwrap_or(20_000);
    let dataset = |count| Ok(Integers(count));
    throughput(options, batches, &[], (64, DefaultCollator), dataset, DefaultCollator, |batch: &Vec<i64>| {
        ends(batch)
    })
}

fn bandwidth<T: Element + Sync>(options: &Options, element: impl Fn(usize) -> T) -> anyhow::Result<()> {
    let shape = options.sample.shape();
    let sample: Arc<[T]> = (0..shape.iter().product()).map(element).collect();
    let batches = options.batches.unwrap_or(options.sample.batches());
    let dataset = |count| Ok(Repeated { count, sample: Arc::clone(&sample) });
    let read = options.read;
    throughput(
        options,
        batches,
        &shape,
        (3, Concatenate::default()),
        dataset,
        Concatenate::default(),
        |batch: &Vec<T>| match read {
            Read::Ends => ends(batch),
            Read::Pages => pages(batch),
        },
    )
}

fn tokens(options: &Options) -> anyhow::Result<()> {
    let path: &Path = options.file.as_deref().context("tokens needs --file")?;
    let tokens = Tokens::open(path)?;
    let max = MAX_TOKEN_BATCHES.min(tokens.len() / options.batch_size());
    throughput(
        options,
        options.batches.unwrap_or(max),
        &[TOKENS],
        (16, Concatenate::default()),
        |count| tokens.first(count),
        Concatenate::default(),
        |batch: &Vec<i64>| ends(batch),
    )
}

fn images(options: &Options) -> anyhow::Result<()> {
    let images = Images::open(options.folder.as_deref().context("images needs --folder")?)?;
    let batch_size = options.batch_size();
    let batches = options.batches.unwrap_or(images.len() / batch_size);
    let mut loader = open(options, images.repeated(batches * batch_size), ConcatenateLabelled, true);
    let timing = epochs(options, batches, &mut loader, |(pictures, _)| ends(pictures))?;
    let rates = timing.per_batch.iter().map(|micros| batch_size as f64 / micros * 1e6).collect();
    let samples = batches * batch_size * options.epochs();
    let shape = [&[batch_size], images::SHAPE.as_slice()].concat();
    system::print(
        options,
        json!({
            "batches": batches,
            "images_per_second": Spread::of(rates),
            "cpu_ms_per_image": timing.cpu / samples as f64 / 1e3,
            "check": { "batches": batches, "shape": shape, "dtype": f32::DTYPE },
        }),
    )
}

/// Measures the time to the first batch. The threads belong to the loader, so an epoch starts no thread, and
/// the drop of its iterator waits for none.
fn start<D: Dataset, C: Collator<D::Item>>(options: &Options, dataset: D, collator: C) -> anyhow::Result<()> {
    let mut loader = open(options, dataset, collator, options.shuffle);
    let (mut starts, mut drops) = (Vec::new(), Vec::new());
    for _ in 0..=options.epochs() {
        let called = Instant::now();
        let mut iter = loader.iter();
        let batch = loaded(iter.next().context("an epoch has no batch")?)?;
        starts.push(called.elapsed().as_secs_f64() * 1e3);
        drop(black_box(batch));
        let called = Instant::now();
        drop(iter);
        drops.push(called.elapsed().as_secs_f64() * 1e3);
    }
    let cold = starts.remove(0);
    drops.remove(0);
    let (starts, drops) = (Spread::of(starts), Spread::of(drops));
    system::print(options, json!({ "cold_ms": cold, "first_batch_ms": starts, "drop_ms": drops }))
}

fn memory<D: Dataset, C: Collator<D::Item>>(
    options: &Options,
    dataset: D,
    collator: C,
) -> anyhow::Result<()> {
    let batches = options.batches.unwrap_or(200);
    let mut loader = open(options, dataset, collator, options.shuffle);
    let mut iter = loader.iter();
    for batch in iter.by_ref().take(batches) {
        drop(black_box(loaded(batch)?));
    }
    let main = Memory::of_this_process()?;
    let (pss, workers) = (main.pss, [(); 0]);
    system::print(options, json!({ "batches": batches, "main": main, "workers": workers, "pss": pss }))
}

fn stragglers(options: &Options) -> anyhow::Result<()> {
    let batches = options.batches.unwrap_or(200);
    let check = verify(options, Stragglers(4 * options.batch_size()), DefaultCollator, &[])?;
    let count = batches * options.batch_size();
    let mut loader = open(options, Stragglers(count), DefaultCollator, options.shuffle);
    let mut seconds = Vec::new();
    for _ in 0..options.epochs() {
        let called = Instant::now();
        let mut loaded_batches = 0;
        for batch in loader.iter() {
            black_box(ends(&loaded(batch)?));
            loaded_batches += 1;
        }
        seconds.push(called.elapsed().as_secs_f64());
        ensure!(loaded_batches == batches, "{loaded_batches} of {batches} batches");
    }
    let slept: f64 = (0..count).map(|index| Stragglers::delay(index).as_secs_f64()).sum();
    let (ideal, seconds) = (slept / options.workers.max(1) as f64, Spread::of(seconds));
    let of_ideal = ideal / seconds.median;
    system::print(
        options,
        json!({
            "batches": batches,
            "seconds": seconds,
            "ideal_seconds": ideal,
            "of_ideal": of_ideal,
            "check": check,
        }),
    )
}

/// Measures the drop of an iterator together with its loader, because the threads belong to the loader.
fn shutdown(options: &Options) -> anyhow::Result<()> {
    let mut drops = Vec::new();
    for _ in 0..=options.epochs() {
        let mut loader = open(options, Integers(START_SAMPLES), DefaultCollator, options.shuffle);
        let mut iter = loader.iter();
        for batch in iter.by_ref().take(10) {
            drop(black_box(loaded(batch)?));
        }
        let called = Instant::now();
        drop((iter, loader));
        system::wait_for_threads()?;
        drops.push(called.elapsed().as_secs_f64() * 1e3);
    }
    drops.remove(0);
    system::print(options, json!({ "drop_ms": Spread::of(drops) }))
}
