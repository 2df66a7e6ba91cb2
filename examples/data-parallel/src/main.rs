//! Data-parallel training with candle: each process loads its share of the digits, and the processes average their
//! gradients over TCP.
//!
//!     cargo run --release --package example-data-parallel
//!
//! Without a launcher, the program starts two ranks of itself with the variables that torchrun sets. Under
//! `mpirun -n 2` or `torchrun`, each process is a rank already. Rank 0 listens at `MASTER_ADDR`, on the port after
//! `MASTER_PORT`, because torchrun itself listens on that one.
//!
//! Rank 0 then trains alone, with batches as large as those of all ranks together. The losses must be equal up to
//! rounding: see `BOUND`. To show that the check can fail, rank 0 also trains with its share and its own gradients
//! alone. With the argument `--die`, the last rank ends in mid-epoch; the others must then end with an error.

mod group;

use std::{
    env,
    net::TcpListener,
    process::{Child, Command, exit},
};

use anyhow::{Context, ensure};
use candle_core::{Device, Tensor};
use candle_nn::loss::cross_entropy;
use example_digits::{CLASSES, DigitBatch, DigitCandle, Digits, Network, PIXELS};
use loader::{LaunchedRank, LauncherMode, prelude::DataLoader};

use crate::group::Group;

const SEED: u64 = 7;
const EPOCHS: u64 = 5;
/// Number of images in a step of all ranks together.
const BATCH_SIZE: usize = 64;
const RATE: f64 = 0.1;
/// In this step the last rank ends, with `--die`.
const LAST_STEP: usize = 30;

/// Max difference of a loss. Both trainings add the same numbers, in another order. About 140 operations of a step
/// depend on each other (the sums over 64 pixels, 10 classes and 64 images), and each rounds by at most `2^-24` of its
/// result, in either direction, so a step differs by about `sqrt(140) * 2^-24`. Softmax regression is convex, and
/// `RATE` is below `2 / L`: `L` is at most half of the mean squared length of the images, which is about 15. Such a
/// step of gradient descent does not enlarge a difference of the weights, so the differences of the steps at most
/// add up: `140 * sqrt(140) * 2^-24` is `9.9e-5` for 140 steps.
const BOUND: f32 = 1e-4;

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let dies = env::args().any(|argument| argument == "--die");
    let Some(launched) = LaunchedRank::from_env()? else { return start_ranks(2) };
    println!("{launched}");
    let (rank, world_size) = (launched.rank, launched.world_size);
    ensure!(BATCH_SIZE.is_multiple_of(world_size), "{world_size} does not divide {BATCH_SIZE}");

    let mut group = Group::join(rank, world_size, &address()?)?;
    let share = open(BATCH_SIZE / world_size, LauncherMode::Auto)?;
    let mut steps = 0;
    let losses = train(&share, |gradients| {
        steps += 1;
        if dies && rank + 1 == world_size && steps == LAST_STEP {
            println!("rank {rank} ends in step {steps}");
            exit(9);
        }
        group.average(gradients)
    })?;
    println!("rank {rank}: {} steps, the last loss is {:.4}", losses.len(), losses[losses.len() - 1]);
    if rank == 0 {
        compare(&losses, &share)?;
    }
    Ok(())
}

/// Compares with the losses of this process alone.
fn compare(losses: &[f32], share: &DataLoader<DigitBatch>) -> anyhow::Result<()> {
    let difference = |other: &[f32]| {
        ensure!(losses.len() == other.len(), "{} steps instead of {}", other.len(), losses.len());
        let differences = losses.iter().zip(other).map(|(loss, other)| (loss - other).abs());
        Ok(differences.fold(0.0, f32::max))
    };
    let together = difference(&train(&open(BATCH_SIZE, LauncherMode::Off)?, |_| Ok(()))?)?;
    let alone = difference(&train(share, |_| Ok(()))?)?;
    println!("max difference to one process with batches of {BATCH_SIZE}: {together:.1e}");
    println!("max difference to rank 0 with its own gradients: {alone:.1e}");
    ensure!(together <= BOUND, "the losses differ by {together:e}, more than {BOUND:e}");
    ensure!(alone > BOUND, "the losses do not depend on the gradients of the other ranks");
    Ok(())
}

fn open(batch_size: usize, launcher: LauncherMode) -> anyhow::Result<DataLoader<DigitBatch>> {
    Ok(DataLoader::builder(Digits::open()?)
        .batch_size(batch_size)
        .shuffle(true)
        .seed(SEED)
        .drop_last(true) // so that each step is of `BATCH_SIZE` images
        .num_workers(1)
        .launcher(launcher)
        .build()?)
}

/// Trains softmax regression, and returns the loss of each step. `average` replaces the gradients and the loss of a
/// step by their mean over the ranks.
fn train(
    loader: &DataLoader<DigitBatch>,
    mut average: impl FnMut(&mut [f32]) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    let network = Network::new(&[PIXELS, CLASSES], SEED, &Device::Cpu)?;
    let mut losses = Vec::new();
    for epoch in 0..EPOCHS {
        let mut batches = loader.epoch(epoch)?;
        for batch in batches.by_ref() {
            let DigitCandle { pixels, label } = batch?.to_candle(&Device::Cpu)?;
            let loss = cross_entropy(&network.forward(&pixels)?, &label)?;
            let gradients = loss.backward()?;
            let mut values = vec![loss.to_scalar()?];
            for var in network.vars() {
                let gradient = gradients.get(var).context("a weight has no gradient")?;
                values.extend(gradient.flatten_all()?.to_vec1::<f32>()?);
            }
            average(&mut values)?;
            losses.push(values[0]);
            let mut rest = &values[1..];
            for var in network.vars() {
                let (gradient, others) = rest.split_at(var.elem_count());
                let gradient = Tensor::from_slice(gradient, var.shape(), var.device())?;
                var.set(&(var.as_tensor() - (gradient * RATE)?)?)?;
                rest = others;
            }
        }
        if epoch + 1 == EPOCHS {
            println!("{}", batches.report());
        }
    }
    Ok(losses)
}

/// Starts this program `world_size` times, as torchrun does, and waits until all have ended.
fn start_ranks(world_size: usize) -> anyhow::Result<()> {
    // Rank 0 will listen on a port that is free now.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: usize| {
        Command::new(env::current_exe()?)
            .args(env::args_os().skip(1))
            .envs([("RANK", rank), ("LOCAL_RANK", rank)].map(|(name, rank)| (name, rank.to_string())))
            .envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|name| (name, world_size.to_string())))
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", (port - 1).to_string())])
            .spawn()
    };
    let ranks: Vec<Child> = (0..world_size).map(start).collect::<std::io::Result<_>>()?;
    let mut failed = Vec::new();
    for (rank, mut process) in ranks.into_iter().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    ensure!(failed.is_empty(), "a rank has failed: {}", failed.join(", "));
    Ok(())
}

/// Returns the address at which rank 0 listens.
fn address() -> anyhow::Result<String> {
    let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = env::var("MASTER_PORT").unwrap_or_else(|_| "29500".to_owned());
    let port: u16 = port.parse().with_context(|| format!("MASTER_PORT is `{port}`"))?;
    Ok(format!("{host}:{}", port.checked_add(1).context("MASTER_PORT is the last port")?))
}
