//! States of ranks that come from different runs of a job, because a rank was killed before it saved a newer one.

use loader_core::{DataLoader, Iter, MergeError, State, Tensor, collate::Batch};
use loader_tests::{
    Watchdog,
    datasets::{Count, Shards},
};

use crate::resumed::saved;

const ALL: usize = usize::MAX;

/// Two ranks share 40 batches, and each saves its state after `stops` batches of its own.
fn states<B: Batch>(
    build: impl Fn(usize) -> DataLoader<B>,
    from: Option<&State>,
    stops: [usize; 2],
) -> [State; 2] {
    [0, 1].map(|rank| {
        let loader = build(rank);
        let mut batches = begin(&loader, from);
        batches.by_ref().take(stops[rank]).for_each(|batch| drop(batch.unwrap()));
        saved(&batches.state())
    })
}

fn begin<B: Batch>(loader: &DataLoader<B>, from: Option<&State>) -> Iter<B> {
    from.map_or_else(|| loader.iter(), |state| loader.resume(state)).unwrap()
}

#[track_caller]
fn assert_refused(states: [&State; 2]) {
    let error = State::merge(states.map(State::clone)).unwrap_err();
    assert!(matches!(error, MergeError::OtherRun { .. }), "{error:?}");
}

/// Each of two ranks gives its state of the first run, and the other rank that of the second run.
fn assert_runs_are_told_apart<B: Batch>(build: impl Fn(usize) -> DataLoader<B>) {
    for first_stops in [[ALL, 5], [5, ALL], [3, 5]] {
        let first = states(&build, None, first_stops);
        let merged = State::merge(first.clone()).unwrap();
        for second_stops in [[1, 1], [ALL, 1], [1, ALL], [ALL, ALL]] {
            let second = states(&build, Some(&merged), second_stops);
            assert_refused([&first[0], &second[1]]);
            assert_refused([&second[0], &first[1]]);
            State::merge(second).unwrap();
        }
    }
}

fn numbers(rank: usize) -> DataLoader<Tensor<u64>> {
    let builder = DataLoader::builder(Count(400)).batch_size(10).shuffle(true).seed(5);
    builder.distributed(rank, 2).build().unwrap()
}

#[test]
fn a_state_of_the_run_before_is_refused() {
    let _watchdog = Watchdog::start();
    assert_runs_are_told_apart(numbers);
}

/// Positions in shards do not depend on the run, but rank 0 has the digests of all ranks of the run before.
#[test]
fn a_state_of_the_run_before_is_refused_for_streams() {
    let _watchdog = Watchdog::start();
    assert_runs_are_told_apart(|rank| {
        let builder = DataLoader::stream(Shards::of(&[100; 4])).shards(2).batch_size(10).digest(true);
        builder.distributed(rank, 2).build().unwrap()
    });
}

/// A rank that has ended its share takes its state from the loader, or from the iterator of the next epoch.
#[test]
fn the_state_of_the_next_epoch_names_the_run() {
    let first = states(numbers, None, [ALL, 5]);
    let merged = State::merge(first.clone()).unwrap();
    let loader = numbers(0);
    begin(&loader, Some(&merged)).for_each(|batch| drop(batch.unwrap()));
    let of_loader = loader.state();
    let mut next = loader.iter().unwrap();
    let second = states(numbers, Some(&merged), [1, 1]);
    for state in [&of_loader, &next.state(), &numbers(0).resume(&of_loader).unwrap().state()] {
        assert_refused([state, &first[1]]);
        State::merge([state.clone(), second[1].clone()]).unwrap();
    }

    // All ranks have ended their shares. The next run begins with an ordinary epoch, and so does the one after it.
    let ended = states(numbers, Some(&merged), [ALL, ALL]);
    let third = states(numbers, Some(&State::merge(ended.clone()).unwrap()), [3, 3]);
    State::merge([ended[0].clone(), third[1].clone()]).unwrap();
    next.next().unwrap().unwrap();
    State::merge([next.state(), third[1].clone()]).unwrap();

    // An epoch that begins anew takes nothing from the merged state.
    let again = State::merge([loader.epoch(0).unwrap().state(), numbers(1).iter().unwrap().state()]).unwrap();
    assert_eq!(begin(&numbers(0), Some(&again)).count(), 20);
}
