//! Workers that die and are not replaced. Nothing is lost in silence, as in PyTorch, and the rest of the
//! epoch can be resumed from the last batch that the program has received.

use std::{thread, time::Duration};

use loader_core::{Error, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Fault, Faulty, Shards, Squares},
    gate::{Gate, Gated, GatedStream},
    processes,
    ways::{all, numbers},
};
use nix::sys::signal::Signal;

/// Kills all workers after the third batch, and loads the rest of the epoch with another loader. Returns all
/// numbers, sorted.
fn kill_and_resume<B: Batch>(
    loader: &DataLoader<B>,
    other: &DataLoader<B>,
    gate: &Gate,
    numbers: fn(&B) -> &[u64],
) -> Vec<u64> {
    let mut batches = loader.iter().unwrap();
    let mut seen: Vec<B> = batches.by_ref().take(3).map(Result::unwrap).collect();
    batches.worker_pids().into_iter().for_each(|pid| processes::signal(pid, Signal::SIGKILL));
    // Batches that had arrived before may still be returned.
    let error = loop {
        match batches.next().unwrap() {
            Ok(batch) => seen.push(batch),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::WorkerExited { .. }), "{error:?}");
    assert!(batches.next().is_none() && batches.next().is_none());
    let state = batches.state();
    assert_eq!(state.batches(), seen.len() as u64);
    gate.open();
    seen.extend(all(other.resume(&state).unwrap()));
    let mut found: Vec<u64> = seen.iter().flat_map(|batch| numbers(batch).to_vec()).collect();
    found.sort_unstable();
    found
}

/// PyTorch goes on without the batches of the dead worker, or ends the epoch early without an error.
// PyTorch: P-29, X06, N10
#[test]
fn after_a_death_the_rest_of_the_epoch_can_be_resumed() {
    let _watchdog = Watchdog::start();
    for (workers, in_order) in [(1, true), (3, true), (3, false)] {
        let gate = Gate::closed();
        let map = || DataLoader::builder(Gated { count: 20, slow: 7, gate: gate.path() });
        let loader = map().num_workers(workers).in_order(in_order).on_worker_death(OnWorkerDeath::Fail);
        let other = map().num_workers(2).build().unwrap();
        let seen =
            kill_and_resume(&loader.build().unwrap(), &other, &gate, |(numbers, _)| numbers.as_slice());
        assert!(seen.into_iter().eq(0..20), "{workers} workers, in order: {in_order}");
    }
}

/// Workers read shards ahead of the program; with snapshots, a resumed shard does not begin at its start.
// PyTorch: P-29
#[test]
fn after_a_death_the_rest_of_a_stream_can_be_resumed() {
    let _watchdog = Watchdog::start();
    for in_order in [true, false] {
        let gate = Gate::closed();
        let stream =
            || DataLoader::stream(GatedStream(Gated { count: 40, slow: 15, gate: gate.path() })).shards(4);
        let loader = stream().num_workers(2).in_order(in_order).on_worker_death(OnWorkerDeath::Fail);
        let other = stream().build().unwrap();
        let seen =
            kill_and_resume(&loader.build().unwrap(), &other, &gate, |(numbers, _)| numbers.as_slice());
        assert!(seen.into_iter().eq(0..40), "in order: {in_order}");

        let stream = || {
            let dataset = Squares { count: 4000 }.map(|(square, read), _| {
                thread::sleep(Duration::from_micros(100));
                Ok((square, read))
            });
            DataLoader::stream(dataset).snapshots().shards(4).batch_size(2)
        };
        let loader = stream().num_workers(2).in_order(in_order).on_worker_death(OnWorkerDeath::Fail);
        let other = stream().num_workers(3).build().unwrap();
        let seen =
            kill_and_resume(&loader.build().unwrap(), &other, &gate, |(squares, _)| squares.as_slice());
        assert!(seen.into_iter().eq((0..4000).map(|number| number * number)), "in order: {in_order}");
    }
}

// PyTorch: X22, N13
#[test]
fn a_death_affects_its_own_loader_only() {
    let _watchdog = Watchdog::start();
    let good = DataLoader::builder(Count(50)).num_workers(2).build().unwrap();
    let bad = DataLoader::builder(Faulty { count: 50, at: 9, fault: Fault::Kill }).num_workers(2);
    let (mut good, bad) = (good.iter().unwrap(), bad.build().unwrap().iter().unwrap());
    let mut errors = 0;
    for batch in bad {
        errors += usize::from(batch.is_err());
        assert!(good.next().unwrap().is_ok());
    }
    assert_eq!(errors, 1);
    assert!(good.all(|batch| batch.is_ok()));
}

/// The first shard has one sample. The death of its worker is no error, and the next epoch has the worker
/// again.
// PyTorch: N02
#[test]
fn the_death_of_a_worker_whose_shards_have_ended_is_no_error() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        let builder = DataLoader::stream(Shards::of(&[1, 60])).shards(2).num_workers(2);
        let loader = builder.persistent_workers(persistent).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let first: Vec<_> = batches.by_ref().take(20).map(Result::unwrap).collect();
        let pid = batches.worker_pids()[0];
        // A worker that is not persistent was already told to end.
        if persistent {
            assert!(processes::is_running(pid), "the worker waits for the next epoch");
            processes::signal(pid, Signal::SIGKILL);
        }
        let whole = [numbers(&first), numbers(&all(batches))].concat().concat();
        assert!(whole.into_iter().eq(0..61), "persistent: {persistent}");
        assert!(numbers(&all(loader.iter().unwrap())).concat().into_iter().eq(0..61));
    }
}
