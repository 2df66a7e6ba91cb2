//! A deterministic simulation of the coordinator: simulated workers, clock, memory and users, from one seed.
//!
//! | file | what |
//! |---|---|
//! | `scenario.rs` | what the seed decides, and the operations of a user |
//! | `users.rs` | the users, and the simulation, which chooses the next step |
//! | `iterator.rs` | an iterator: the coordinator with its workers and the batches that the user holds |
//! | `crew.rs`, `worker.rs`, `lies.rs` | the workers, the steps of one worker, and its invalid events |
//! | `dataset.rs` | the dataset, and which of its samples fail, hang or crash |
//! | `shared.rs`, `memory.rs` | the clock, and what is in the slots |
//! | `cases.rs` | a test for each defect that the simulation has found |
//! | `received.rs`, `invariants.rs` | what must hold of the batches, and after each step of main |
//!
//! A failing seed is printed, and `SIMULATION_SEED=N` runs it alone, with a trace.

mod cases;
mod crew;
mod dataset;
mod invariants;
mod iterator;
mod lies;
mod memory;
mod received;
mod scenario;
mod shared;
mod users;
mod worker;

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use shared::Counts;
use users::Simulation;

/// Number of seeds that `cargo test` tries. `SIMULATION_SEEDS` replaces it.
const SEEDS: u64 = 1000;

/// Events that must have happened in a thousand seeds.
const TRIED: [&str; 32] = [
    "batches",
    "batches that failed",
    "batches without samples",
    "changes of the number of workers",
    "epochs abandoned to persistent workers",
    "epochs begun by the same workers",
    "epochs given up for memory",
    "errors that end an iterator",
    "hung workers killed",
    "kills",
    "larger slots refused",
    "lies",
    "no memory for next",
    "one iterator",
    "resumed elsewhere",
    "samples that crash",
    "samples that fail",
    "samples that hang",
    "samples that hang once",
    "slots offered",
    "slots vacated",
    "starts refused",
    "states refused",
    "stops",
    "tasks withdrawn",
    "tensors kept by workers",
    "timeouts",
    "two iterators of one thread",
    "two iterators of two threads",
    "whole epochs",
    "workers added",
    "workers expelled",
];

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("the variable is a number"))
}

/// Runs the seeds that no other thread takes. Returns how often each event has happened.
fn run_seeds(next: &AtomicU64, seeds: u64, started: Instant) -> Counts {
    let mut sum = Counts::new();
    loop {
        // Relaxed: the number alone matters.
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds {
            return sum;
        }
        let run = AssertUnwindSafe(|| Simulation::new(seed, started, false).run());
        let counts = catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("seed {seed} failed: run it again with SIMULATION_SEED={seed}");
            next.store(seeds, Ordering::Relaxed);
            resume_unwind(panic)
        });
        counts.into_iter().for_each(|(what, count)| *sum.entry(what).or_default() += count);
    }
}

#[test]
fn any_seed_gives_each_batch_once() {
    let started = Instant::now();
    if let Some(seed) = number("SIMULATION_SEED") {
        return drop(Simulation::new(seed, started, true).run());
    }
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let next = AtomicU64::new(0);
    let parts: Vec<Counts> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| run_seeds(&next, seeds, started))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut counts = Counts::new();
    parts.into_iter().flatten().for_each(|(what, count)| *counts.entry(what).or_default() += count);
    println!("{counts:#?}");
    println!("simulation: {seeds} seeds in {} s with {threads} threads", started.elapsed().as_secs());
    for what in TRIED {
        assert!(seeds < SEEDS || counts.contains_key(what), "no seed has led to this: {what}");
    }
}
