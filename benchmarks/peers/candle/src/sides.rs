//! The sides: each loads all batches as tensors of candle, and reads the first element of each.

use std::{fs, sync::mpsc, thread, time::Instant};

use anyhow::{Context, ensure};
use candle_core::{Device, Tensor};
use example_digits::{Digit, DigitBatch, DigitCandle, Digits, PIXELS};
use loader::{
    collate::Batch,
    data::{ImageFolder, Transform},
    prelude::{DataLoader, Dataset, Sample, SampleContext, Subset},
};
use loader_candle::ToCandle;
use serde_json::{Value, json};

use crate::{Options, Side, Workload};

/// The samples of a batch, and their labels.
type Pair = (Tensor, Tensor);

const IMAGE: u32 = 224;
const IMAGE_VALUES: usize = 3 * 224 * 224;

type Photograph = (loader::Tensor<f32>, u32);
type Photographs = (loader::Tensor<f32>, loader::Tensor<u32>);

pub(crate) fn measure(options: &Options) -> anyhow::Result<Value> {
    let batches = options.batches.unwrap_or(if options.workload == Workload::Digits { 2_000 } else { 20 });
    match options.workload {
        Workload::Digits => Loop {
            dataset: repeated(Digits::open()?, batches * options.batch_size)?,
            batch_size: options.batch_size,
            stack: stack_digits,
            convert: |batch: &DigitBatch| {
                let DigitCandle { pixels, label } = batch.to_candle(&Device::Cpu)?;
                Ok((pixels, label))
            },
        }
        .run(options),
        Workload::Photographs => {
            let folder = options.folder.as_deref().context("--folder is missing")?;
            let images = ImageFolder::open(folder)?.transform(Transform::standard_eval(IMAGE))?;
            let dataset = repeated(images, batches * options.batch_size)?;
            let convert = |batch: &Photographs| Ok(batch.to_candle(&Device::Cpu)?);
            Loop { dataset, batch_size: options.batch_size, stack: stack_photographs, convert }.run(options)
        }
    }
}

/// Returns `count` samples, which repeat those of the dataset.
fn repeated<D: Dataset>(dataset: D, count: usize) -> anyhow::Result<Subset<D>> {
    let len = dataset.len();
    Ok(Subset::new(dataset, (0..count).map(|index| index % len))?)
}

/// A dataset, and how its samples become tensors of candle: by hand, and from a batch of the loader.
struct Loop<D: Dataset, B> {
    dataset: D,
    batch_size: usize,
    stack: fn(Vec<D::Sample>) -> anyhow::Result<Pair>,
    convert: fn(&B) -> anyhow::Result<Pair>,
}

impl<D, B> Loop<D, B>
where
    D: Dataset + 'static,
    D::Sample: Sample<Batch = B>,
    B: Batch,
{
    fn run(self, options: &Options) -> anyhow::Result<Value> {
        let count = self.dataset.len();
        let mut seen = Seen { started: Instant::now(), first: None, checksum: 0.0, batches: 0, pss_mb: 0.0 };
        let batches = count / self.batch_size;
        let mut watch = |pair: Pair, pids: &[u32]| {
            seen.add(&pair)?;
            if seen.batches == batches / 2 {
                seen.pss_mb = pss_mb(pids)?;
            }
            anyhow::Ok(())
        };
        match options.loader {
            Side::Loop => {
                (0..batches).try_for_each(|batch| {
                    watch(load(&self.dataset, self.stack, self.batch_size, batch)?, &[])
                })?;
            }
            Side::Thread => self.on_threads(1, batches, |pair| watch(pair, &[]))?,
            Side::Threads => {
                ensure!(options.workers > 0, "--loader threads needs --workers");
                self.on_threads(options.workers, batches, |pair| watch(pair, &[]))?;
            }
            Side::Ours => {
                let builder = DataLoader::builder(self.dataset).batch_size(self.batch_size);
                let loader = builder.num_workers(options.workers).build()?;
                let mut iter = loader.iter()?;
                let pids = iter.worker_pids();
                iter.by_ref().try_for_each(|batch| watch((self.convert)(&batch?)?, &pids))?;
            }
        }
        seen.figures(count)
    }

    /// Loads the batches on `count` threads, in turn, and calls `watch` with each in order.
    fn on_threads(
        self,
        count: usize,
        batches: usize,
        mut watch: impl FnMut(Pair) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { dataset, stack, batch_size, .. } = self;
        let dataset = &dataset;
        thread::scope(|scope| {
            let start = |first: usize| {
                let (sender, receiver) = mpsc::sync_channel(2);
                scope.spawn(move || {
                    let numbers = (first..batches).step_by(count);
                    let mut loaded = numbers.map(|batch| load(dataset, stack, batch_size, batch));
                    // The receiver is gone if the loop has ended with an error.
                    loaded.try_for_each(|batch| sender.send(batch)).ok();
                });
                receiver
            };
            let receivers: Vec<_> = (0..count).map(start).collect();
            (0..batches).try_for_each(|batch| {
                let loaded = receivers[batch % count].recv().context("a thread has panicked")?;
                watch(loaded?)
            })
        })
    }
}

/// Loads batch `batch` as a loop without a loader does.
fn load<D: Dataset>(
    dataset: &D,
    stack: fn(Vec<D::Sample>) -> anyhow::Result<Pair>,
    batch_size: usize,
    batch: usize,
) -> anyhow::Result<Pair> {
    let indices = batch * batch_size..(batch + 1) * batch_size;
    let samples = indices.map(|index| dataset.get(index, &mut SampleContext::new(index as u64)));
    stack(samples.collect::<anyhow::Result<_>>()?)
}

fn stack_digits(digits: Vec<Digit>) -> anyhow::Result<Pair> {
    let mut pixels = Vec::with_capacity(digits.len() * PIXELS);
    digits.iter().for_each(|digit| pixels.extend_from_slice(&digit.pixels));
    let labels: Vec<u8> = digits.iter().map(|digit| digit.label).collect();
    let count = digits.len();
    Ok((
        Tensor::from_vec(pixels, (count, PIXELS), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}

fn stack_photographs(photographs: Vec<Photograph>) -> anyhow::Result<Pair> {
    let mut pixels = Vec::with_capacity(photographs.len() * IMAGE_VALUES);
    photographs.iter().for_each(|(values, _)| pixels.extend_from_slice(values.as_slice()));
    let labels: Vec<u32> = photographs.iter().map(|(_, label)| *label).collect();
    let (count, side) = (photographs.len(), IMAGE as usize);
    Ok((
        Tensor::from_vec(pixels, (count, 3, side, side), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}

/// What a loop has seen.
struct Seen {
    started: Instant,
    /// When the first batch was there.
    first: Option<Instant>,
    checksum: f64,
    batches: usize,
    pss_mb: f64,
}

impl Seen {
    fn add(&mut self, (values, labels): &Pair) -> anyhow::Result<()> {
        self.first.get_or_insert_with(Instant::now);
        self.batches += 1;
        let middle = values.elem_count() / 2;
        let value: f32 = values.flatten_all()?.get(middle)?.to_scalar()?;
        let label: f32 = labels.get(0)?.to_dtype(candle_core::DType::F32)?.to_scalar()?;
        self.checksum += (f64::from(value) + f64::from(label)) * self.batches as f64;
        Ok(())
    }

    fn figures(&self, samples: usize) -> anyhow::Result<Value> {
        let first = self.first.context("there was no batch")?;
        Ok(json!({
            "samples_per_second": samples as f64 / self.started.elapsed().as_secs_f64(),
            "first_batch_ms": (first - self.started).as_secs_f64() * 1e3,
            "pss_mb": self.pss_mb,
            "check": self.checksum,
        }))
    }
}

/// Memory of this process and of the workers, in the middle of the loop.
fn pss_mb(workers: &[u32]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for process in workers.iter().chain([&std::process::id()]) {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
        sum += line.trim().trim_end_matches(" kB").parse::<f64>()? / 1e3;
    }
    Ok(sum)
}
