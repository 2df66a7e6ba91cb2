//! A language model with candle: a transformer over bytes learns to add, and its training is stopped in mid-epoch
//! and resumed.
//!
//!     cargo run --release --package example-language-model
//!
//! The program writes lines such as `7+5=12 0+3=3`. Two workers make tokens of the lines and pack them into windows. A
//! checkpoint holds the weights, the moments of Adam and the state of the loader. After the
//! checkpoint the program makes some more steps, and forgets them, as a program that crashes does. A new model and a
//! new loader, with another number of workers, then resume from the checkpoint: the losses of these steps must
//! be the same, bit for bit.
//!
//! Each operand is one of ten digits, so the lowest possible loss is known. A model that does not look at both operands
//! of a sum pays `ln 10` nats more for its result, half as much again as the lowest loss. The program fails if the loss
//! exceeds the lowest one by more than a tenth of that. At this bound, a correct result has a probability of
//! `exp(-0.23)`, 79 %, in the geometric mean. So the program also fails if less than three of four generated sums are
//! correct.
//!
//! `-- --steps N` ends after fewer steps than the 1,000 of the whole training. The program then compares the losses
//! after the resume only.

mod model;
mod text;

use std::{env, fs, os::unix::process::CommandExt, path::Path, process::Command};

use anyhow::{Context, ensure};
use candle_core::{D, Device, Tensor, safetensors};
use candle_nn::ops::softmax;
use loader::{
    data::TextLines,
    pack::{PackMethod, PackedBatch, Packing},
    prelude::{DataLoader, Dataset, IterableDataset, State},
    rand::{RngExt, SeedableRng, rngs::ChaCha8Rng},
};
use loader_candle::{PackedCandle, ToCandle};

use crate::model::{Model, Tokens};

const SEED: u64 = 7;
const LINES: usize = 40_000;
/// A document begins with a line break, so that its first digit is a target too.
const CONTEXT: usize = 1 + text::LONGEST;
const WINDOW: usize = 2 * CONTEXT;
/// Steps until the checkpoint, steps that are lost after it, and steps after which the model has learnt to add.
const CHECKPOINT: usize = 100;
const LOST: usize = 10;
const STEPS: usize = 1000;
/// Learning rate of the first step. It falls to 0 at the last one.
const RATE: f64 = 5e-3;

/// candle reads its number of threads from this variable. Its threads spin while they wait for each other, so for
/// matrices as small as here a second thread costs more than it gives.
const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it
    if env::var_os(THREADS).is_none() {
        // Starts this program again, in the same process.
        let mut again = Command::new(env::current_exe()?);
        return Err(again.args(env::args_os().skip(1)).env(THREADS, "1").exec().into());
    }
    let steps = steps()?;

    let folder = tempfile::tempdir()?;
    let lines = folder.path().join("sums.txt");
    let text = text::write(LINES, SEED);
    fs::write(&lines, &text)?;
    println!("{LINES} lines; the first one: {}", text.lines().next().unwrap_or_default());

    let mut first = Training::new(&lines, 2)?;
    first.run_until(CHECKPOINT)?;
    first.save(&folder.path().join("checkpoint"))?;
    first.run_until(CHECKPOINT + LOST)?;
    let lost = first.losses[CHECKPOINT..].to_vec();
    drop(first);

    let mut training = Training::resume(&folder.path().join("checkpoint"), &lines, 1)?;
    training.run_until(steps)?;
    ensure!(training.losses[..LOST] == lost, "the losses after the resume differ: {lost:?}");
    println!("the {LOST} losses after the resume are those of the training that was stopped");
    if steps < STEPS {
        println!("what the model has learnt after {steps} of {STEPS} steps is not checked");
        return Ok(());
    }
    check_what_is_learnt(&training, &text)
}

/// Reads `--steps N` from the command line; the steps of the whole training by default.
fn steps() -> anyhow::Result<usize> {
    let mut arguments = env::args().skip(1);
    let Some(name) = arguments.next() else { return Ok(STEPS) };
    ensure!(name == "--steps", "unknown argument {name}; there is --steps N");
    let steps = arguments.next().context("--steps needs a number")?.parse().context("--steps")?;
    let range = CHECKPOINT + LOST..=STEPS;
    ensure!(
        range.contains(&steps),
        "--steps {steps} is not in {range:?}; the checkpoint needs the first ones"
    );
    Ok(steps)
}

/// Fails if the model has not learnt to add.
fn check_what_is_learnt(training: &Training, text: &str) -> anyhow::Result<()> {
    let last = &training.losses[training.losses.len() - 50..];
    let loss = f64::from(last.iter().sum::<f32>()) / last.len() as f64;
    let lowest = text::entropy(text);
    let bound = lowest * 1.05;
    println!("loss {loss:.4} nats per byte; the lowest possible one is {lowest:.4}");
    let generated =
        (0..32).map(|seed| generate(&training.model, seed)).collect::<anyhow::Result<Vec<_>>>()?;
    let sums = generated.iter().map(|line| text::check(line));
    let (correct, all) = sums.fold((0, 0), |(correct, all), (c, a)| (correct + c, all + a));
    println!("generated: {}\n{correct} of {all} generated sums are correct", generated[0]);
    ensure!(loss <= bound, "the loss is {loss:.4}, above {bound:.4}");
    ensure!(all > 0 && correct * 4 >= all * 3, "the model has not learnt to add");
    Ok(())
}

/// A training, and its position.
struct Training {
    loader: DataLoader<PackedBatch<u32>>,
    state: State,
    model: Model,
    /// The loss of each step since this program started the training.
    losses: Vec<f32>,
    steps: usize,
}

impl Training {
    fn new(lines: &Path, num_workers: usize) -> anyhow::Result<Self> {
        let documents = TextLines::open(lines)?.map(|line, _cx| {
            let bytes = ["\n", &line].concat().into_bytes();
            Ok(bytes.into_iter().map(u32::from).collect::<Vec<_>>())
        });
        let packing = Packing::new(WINDOW).method(PackMethod::BestFit).shuffle(true);
        let loader = DataLoader::stream(documents.into_stream().shuffle(true).pack(packing)?)
            .snapshots()
            .shards(2)
            .batch_size(16)
            .seed(SEED)
            .num_workers(num_workers)
            .build()?;
        let model = Model::new(CONTEXT, SEED)?;
        Ok(Self { state: loader.state(), loader, model, losses: Vec::new(), steps: 0 })
    }

    /// Makes steps until there are `steps`, over as many epochs as they need.
    fn run_until(&mut self, steps: usize) -> anyhow::Result<()> {
        while self.steps < steps {
            let mut batches = self.loader.resume(&self.state)?;
            for batch in batches.by_ref().take(steps - self.steps) {
                self.step(&batch?)?;
            }
            self.state = batches.state();
            println!("step {}: loss {:.4}", self.steps, self.losses[self.losses.len() - 1]);
            println!("{}", batches.report());
        }
        Ok(())
    }

    fn step(&mut self, batch: &PackedBatch<u32>) -> anyhow::Result<()> {
        let PackedCandle { tokens, positions, segments, .. } = batch.to_candle(&Device::Cpu)?;
        let batch = Tokens { tokens: &tokens, positions: &positions, segments: &segments };
        let loss = self.model.loss(&batch)?;
        self.model.step(&loss.backward()?, RATE * (1.0 - self.steps as f64 / STEPS as f64))?;
        self.losses.push(loss.to_scalar()?);
        self.steps += 1;
        Ok(())
    }

    /// Writes the folder `checkpoint`. A crash leaves a whole checkpoint or none.
    fn save(&self, checkpoint: &Path) -> anyhow::Result<()> {
        let unfinished = checkpoint.with_extension("tmp");
        fs::create_dir(&unfinished)?;
        safetensors::save(&self.model.tensors()?, unfinished.join("model.safetensors"))?;
        fs::write(unfinished.join("loader.json"), serde_json::to_vec(&(self.steps, &self.state))?)?;
        Ok(fs::rename(unfinished, checkpoint)?)
    }

    fn resume(checkpoint: &Path, lines: &Path, num_workers: usize) -> anyhow::Result<Self> {
        let mut training = Self::new(lines, num_workers)?;
        training.model.restore(&safetensors::load(checkpoint.join("model.safetensors"), &Device::Cpu)?)?;
        (training.steps, training.state) =
            serde_json::from_slice(&fs::read(checkpoint.join("loader.json"))?)?;
        Ok(training)
    }
}

/// Draws a line byte by byte, until no other sum fits.
fn generate(model: &Model, seed: u64) -> anyhow::Result<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = vec![b'\n'];
    while bytes.len() < CONTEXT {
        let count = bytes.len();
        let tokens: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
        let tokens = Tensor::from_vec(tokens, (1, count), &Device::Cpu)?;
        let positions = Tensor::arange(0, count as u32, &Device::Cpu)?.unsqueeze(0)?;
        let batch = Tokens { tokens: &tokens, positions: &positions, segments: &tokens.ones_like()? };
        let logits = model.forward(&batch)?.get(0)?.get(count - 1)?;
        let mut rest: f32 = rng.random();
        let chances: Vec<f32> = softmax(&logits, D::Minus1)?.to_vec1()?;
        let chosen = chances.iter().position(|chance| {
            rest -= chance;
            rest < 0.0
        });
        bytes.push(u8::try_from(chosen.unwrap_or(0))?);
    }
    let text = String::from_utf8_lossy(&bytes[1..]);
    // The last sum may not be complete.
    Ok(text.rsplit_once(' ').context("the model has generated no space")?.0.to_owned())
}
