//! Reinforcement learning: each worker holds simulators, and a policy learns from their episodes.
//!
//!     cargo run --release --package example-simulators
//!
//! The policy balances a pole on a cart. It is a vector of four weights that evolution strategies improve
//! (Salimans et al., 2017): in each generation the simulators play episodes with weights that differ from the
//! policy's by random numbers, and the policy moves towards those that balanced the pole for longer.
//!
//! The simulators are an iterable dataset. A shard is one simulator, with a generator of random numbers of its own. The
//! index of the shard is the simulator's id, whichever worker holds it: a simulator that opens a port would derive the
//! number of the port from it. The number of shards is fixed, so that the number of workers changes nothing: run it
//! with `-- --num-workers 0` to see the same weights.

mod cart_pole;

use anyhow::Context;
use loader::{
    prelude::*,
    rand::{Rng, RngExt},
};
use serde::{Deserialize, Serialize};

use crate::cart_pole::{CartPole, MAX_STEPS, State};

/// The weights of a policy, one for each number of a state.
type Weights = [f32; 4];

const SIMULATORS: usize = 8;
const EPISODES_PER_SIMULATOR: usize = 32;
const GENERATIONS: u64 = 30;
/// Standard deviation of the random numbers that are added to the weights.
const NOISE: f32 = 0.5;
const LEARNING_RATE: f32 = 1.0;

/// The simulators, and the weights of the policy with which they play.
#[derive(Serialize, Deserialize)]
struct Simulators {
    weights: Weights,
}

/// What the policy learns from. The derive makes `EpisodeBatch`, which has a tensor for each field.
#[derive(Sample)]
struct Episode {
    /// The id of the simulator that has played it.
    simulator: u32,
    /// What was added to the weights, in units of `NOISE`.
    change: Weights,
    steps: f32,
}

impl IterableDataset for Simulators {
    type Sample = Episode;

    /// Starts the simulator of a shard, in a worker.
    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Episode>> + Send> {
        let simulator = u32::try_from(shard.index())?;
        let mut cart_pole = CartPole::default();
        // The shard's own generator: it depends on the loader's seed, the epoch and the shard alone.
        let rng = cx.rng();
        let weights = self.weights;
        Ok((0..EPISODES_PER_SIMULATOR).map(move |_| {
            let change: Weights = std::array::from_fn(|_| normal(rng));
            let weights: Weights = std::array::from_fn(|i| weights[i] + NOISE * change[i]);
            let steps = cart_pole.play(rng, |state| score(&weights, state) > 0.0);
            Ok(Episode { simulator, change, steps: steps as f32 })
        }))
    }
}

/// A policy: it pushes the cart to the right if this is positive.
fn score(weights: &Weights, state: &State) -> f32 {
    weights.iter().zip(state).map(|(weight, value)| weight * value).sum()
}

/// Draws a number from the standard normal distribution (Box and Muller).
fn normal(rng: &mut impl Rng) -> f32 {
    let (radius, angle): (f32, f32) = (rng.random_range(f32::EPSILON..1.0), rng.random());
    (-2.0 * radius.ln()).sqrt() * (angle * std::f32::consts::TAU).cos()
}

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let num_workers = num_workers()?;
    let mut weights: Weights = [0.0; 4];
    let mut mean = 0.0;
    for generation in 0..GENERATIONS {
        // The workers of a loader have a copy of its dataset, so new weights need a new loader. A worker starts
        // in about a millisecond.
        let loader = DataLoader::stream(Simulators { weights })
            .shards(SIMULATORS)
            .batch_size(EPISODES_PER_SIMULATOR)
            .seed(generation)
            .num_workers(num_workers)
            .build()?;
        let mut batches = loader.iter()?;
        let mut episodes: Vec<(Weights, f32)> = Vec::new();
        let mut longest = [0.0_f32; SIMULATORS];
        for batch in batches.by_ref() {
            let EpisodeBatch { simulator, change, steps } = batch?; // [32], [32, 4] and [32]
            for (&simulator, &steps) in simulator.as_slice().iter().zip(steps.as_slice()) {
                longest[simulator as usize] = longest[simulator as usize].max(steps);
            }
            let changes = change.as_slice().as_chunks::<4>().0.iter().copied();
            episodes.extend(changes.zip(steps.as_slice().iter().copied()));
        }
        mean = episodes.iter().map(|(_, steps)| steps).sum::<f32>() / episodes.len() as f32;
        weights = improved(weights, &episodes, mean);
        if generation % 5 == 4 {
            println!("generation {generation}: {mean:.0} of {MAX_STEPS} steps on average");
            for (simulator, steps) in longest.iter().enumerate() {
                println!("  simulator {simulator}: at most {steps} steps");
            }
            println!("{}", batches.report());
        }
    }
    println!("weights {weights:?}");
    anyhow::ensure!(mean > 400.0, "the policy has not learned: {mean:.0} steps on average");
    Ok(())
}

/// Moves the weights towards the changes whose episodes were longer than the mean.
fn improved(weights: Weights, episodes: &[(Weights, f32)], mean: f32) -> Weights {
    let variance =
        episodes.iter().map(|(_, steps)| (steps - mean).powi(2)).sum::<f32>() / episodes.len() as f32;
    let deviation = variance.sqrt().max(1.0);
    std::array::from_fn(|i| {
        let gradient: f32 =
            episodes.iter().map(|(change, steps)| change[i] * (steps - mean) / deviation).sum();
        weights[i] + LEARNING_RATE * gradient / episodes.len() as f32
    })
}

/// Reads `--num-workers N` from the command line; 2 by default.
fn num_workers() -> anyhow::Result<usize> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        None => Ok(2),
        Some(name) => {
            anyhow::ensure!(name == "--num-workers", "unknown argument {name}; there is --num-workers N");
            arguments.next().context("--num-workers needs a number")?.parse().context("--num-workers")
        }
    }
}
