//! Epochs that several ranks begin, and other numbers of ranks go on with.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use loader_core::{
    Builder, Error, MergeError, Order, SampleDigest, State,
    collate::Batch,
    kind::DatasetKind,
    mix::Mix,
    prelude::*,
    sampler::{MixSampler, RandomSampler},
};
use loader_tests::{
    Watchdog,
    alone::Family,
    datasets::{Count, Shards, Slow},
    ways::{all, numbers},
};
use proptest::prelude::*;

use crate::{resumed::saved, streams::Stateful};

/// How the ranks of one run load, and the number of batches after which each of them stops.
#[derive(Debug, Clone)]
struct Run {
    world_size: usize,
    batch_size: usize,
    workers: usize,
    stops: Vec<usize>,
}

fn run(world_sizes: &'static [usize], workers: &'static [usize]) -> impl Strategy<Value = Run> {
    let stops = prop::collection::vec(0usize..9, 12);
    (prop::sample::select(world_sizes), 1usize..7, prop::sample::select(workers), stops)
        .prop_map(|(world_size, batch_size, workers, stops)| Run { world_size, batch_size, workers, stops })
}

impl Run {
    fn set<K: DatasetKind, C, W>(&self, rank: usize, builder: Builder<K, C, W>) -> Builder<K, C, W> {
        let builder = builder.batch_size(self.batch_size).num_workers(self.workers).digest(true).seed(5);
        builder.distributed(rank, self.world_size)
    }
}

/// What a rank has when it stops.
struct Stopped {
    state: State,
    /// Digest of the epoch, as far as this rank knows it.
    digest: SampleDigest,
    batches: usize,
}

/// Loads the rest of the epoch after `state`, or at most `stop` batches of it.
fn load<B: Batch>(loader: &DataLoader<B>, state: Option<&State>, stop: usize) -> Stopped {
    let mut batches = match state {
        Some(state) => loader.resume(state).unwrap(),
        None => loader.iter().unwrap(),
    };
    assert_eq!(batches.epoch(), 0);
    // A rank may have no samples.
    let has_share = |batch: &Result<B, Error>| !matches!(batch, Err(Error::NoShare { .. }));
    let count = batches.by_ref().filter(has_share).take(stop).map(Result::unwrap).count();
    let digest = batches.report().digest.unwrap();
    Stopped { state: saved(&batches.state()), digest, batches: count }
}

/// Lets each of `runs` go on with what the one before has left, and the last one load the rest. Returns the digest
/// of the epoch. `build` makes the loader of a rank.
fn chain<B: Batch>(
    runs: &[Run],
    equal_steps: bool,
    build: impl Fn(&Run, usize) -> DataLoader<B>,
) -> SampleDigest {
    let mut merged: Option<State> = None;
    for (number, run) in runs.iter().enumerate() {
        let is_last = number + 1 == runs.len();
        let stopped = (0..run.world_size).map(|rank| {
            let stop = if is_last { usize::MAX } else { run.stops[rank] };
            load(&build(run, rank), merged.as_ref(), stop)
        });
        let stopped: Vec<Stopped> = stopped.collect();
        let is_over = stopped.iter().all(|rank| rank.state.epoch() == 1);
        if is_last || is_over {
            assert!(!equal_steps || stopped.iter().all(|rank| rank.batches == stopped[0].batches));
            assert!(is_over);
            let epoch = State::merge(stopped.iter().map(|rank| rank.state.clone())).unwrap().epoch();
            assert_eq!(epoch, 1, "the next epoch is an ordinary one");
            return stopped.iter().map(|rank| rank.digest).sum();
        }
        merged = Some(saved(&State::merge(stopped.into_iter().map(|rank| rank.state)).unwrap()));
    }
    unreachable!("the last run loads the rest")
}

fn digest_of<B: Batch>(loader: &DataLoader<B>) -> SampleDigest {
    load(loader, None, usize::MAX).digest
}

fn map_style(samples: usize, shuffle: bool, order: Order, run: &Run, rank: usize) -> DataLoader<Tensor<u64>> {
    let builder =
        DataLoader::builder(Count(samples)).shuffle(shuffle).order(order).in_order(run.workers == 0);
    run.set(rank, builder).build().unwrap()
}

fn assert_map_style(samples: usize, shuffle: bool, order: Order, runs: &[Run]) {
    let one = DataLoader::builder(Count(samples)).digest(true).seed(5).build().unwrap();
    let digest = chain(runs, true, |run, rank| map_style(samples, shuffle, order, run, rank));
    assert_eq!(digest, digest_of(&one));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_ranks_go_on_with_a_map_style_dataset(
        samples in 1usize..120, shuffle: bool, torch: bool,
        runs in prop::collection::vec(run(&[1, 2, 3, 4, 5], &[0]), 3),
    ) {
        assert_map_style(samples, shuffle, if torch { Order::Torch } else { Order::Native }, &runs);
    }

    #[test]
    fn any_ranks_go_on_with_shards(
        sizes in prop::collection::vec(0u64..9, 12),
        runs in prop::collection::vec(run(&[1, 2, 3, 4, 6, 12], &[0]), 3),
    ) {
        let build = |run: &Run, rank| {
            let builder = DataLoader::stream(Shards::of(&sizes)).shards(12 / run.world_size);
            run.set(rank, builder).build().unwrap()
        };
        let one = Run { world_size: 1, batch_size: 4, workers: 0, stops: Vec::new() };
        prop_assert_eq!(chain(&runs, false, build), digest_of(&build(&one, 0)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Workers return batches out of order, so that ranks stop with batches ahead of their turn.
    #[test]
    fn ranks_with_workers_go_on_in_any_order(
        samples in 1usize..120, runs in prop::collection::vec(run(&[1, 2, 3], &[1, 3]), 3),
    ) {
        let _watchdog = Watchdog::start();
        assert_map_style(samples, true, Order::Native, &runs);
    }
}

/// Streams with snapshots, and ranks with different numbers of workers.
#[test]
fn snapshots_are_dealt_out_to_other_ranks() {
    let _watchdog = Watchdog::start();
    let run = |world_size, workers| Run { world_size, batch_size: 4, workers, stops: vec![3, 9, 2] };
    let build = |run: &Run, rank| {
        let builder = DataLoader::stream(Stateful).snapshots().shards(3 / run.world_size);
        run.set(rank, builder).build().unwrap()
    };
    let runs = [run(3, 1), run(1, 2), run(3, 0), run(3, 2)];
    assert_eq!(chain(&runs, false, build), digest_of(&build(&run(1, 0), 0)));
}

/// In the native order, a loader without ranks has the order of the ranks.
#[test]
fn a_process_without_ranks_goes_on_and_is_gone_on_with() {
    let without =
        || DataLoader::builder(Count(70)).shuffle(true).seed(5).digest(true).batch_size(3).build().unwrap();
    let run = Run { world_size: 3, batch_size: 5, workers: 0, stops: vec![1, 2, 3] };
    let build = |rank| map_style(70, true, Order::Native, &run, rank);
    let first = load(&without(), None, 4);
    let merged = State::merge([first.state]).unwrap();
    let stopped: Vec<_> =
        (0..3).map(|rank| load(&build(rank), Some(&merged), run.stops[rank]).state).collect();
    let rest = without();
    let last = load(&rest, Some(&State::merge(stopped).unwrap()), usize::MAX);
    assert_eq!(last.digest, digest_of(&without()));
    // Behind it come the epochs of an ordinary run.
    let expected = all(without().epoch(1).unwrap());
    assert_eq!(numbers(&all(rest.iter().unwrap())), numbers(&expected));
    assert_eq!(numbers(&all(rest.resume(&last.state).unwrap())), numbers(&expected));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let run = Run { world_size: 2, batch_size: 5, workers: 0, stops: vec![2, 3] };
    let build = |rank| map_style(100, true, Order::Native, &run, rank);
    let states: Vec<State> = (0..2).map(|rank| load(&build(rank), None, run.stops[rank]).state).collect();
    let message = build(1).resume(&states[0]).unwrap_err().to_string();
    let hint = "its rank is 0, the loader's is 1; give the state that this rank saved, or merge the states of all \
                ranks with `State::merge` to resume with another number of ranks";
    assert!(message.ends_with(hint), "{message}");

    let merged = State::merge(states).unwrap();
    let sampler = RandomSampler::new(100);
    let own = DataLoader::builder(Count(100)).sampler(sampler).batch_size(5).seed(5).build().unwrap();
    let message = own.resume(&merged).unwrap_err().to_string();
    assert!(
        message.contains("its sampler is shuffle, the loader's is batches(5, random(100)[100])"),
        "{message}"
    );
    let mix = MixSampler::new([50, 50], Mix::new([1.0, 2.0]).unwrap()).unwrap();
    let own = DataLoader::builder(Count(100)).sampler(mix).batch_size(5).build().unwrap();
    let error = State::merge([own.state()]).unwrap_err();
    assert!(matches!(&error, MergeError::OwnSampler { sampler } if sampler.contains("mix")), "{error:?}");

    let stream = |rank, world_size, shards| {
        let builder = DataLoader::stream(Shards::of(&[5; 6])).shards(shards);
        builder.distributed(rank, world_size).build().unwrap()
    };
    let states = (0..2).map(|rank| load_stream(&stream(rank, 2, 3)));
    let merged = State::merge(states).unwrap();
    stream(2, 3, 2).resume(&merged).unwrap();
    for (world_size, shards, expected) in [
        (3, 1, "the state has 6 shards, but 3 ranks with 1 shards each have 3; set shards to 2"),
        (
            4,
            2,
            "the state has 6 shards, but 4 ranks with 2 shards each have 8; 6 shards cannot be divided equally among 4 \
             ranks; use a number of ranks out of 1, 2, 3, 6, and set shards to 6 divided by it",
        ),
    ] {
        let error = stream(0, world_size, shards).resume(&merged).unwrap_err();
        assert!(matches!(error, Error::StateShards { .. }) && error.to_string() == expected, "{error}");
    }
}

/// The state of a rank after its first batch.
fn load_stream(loader: &DataLoader<Tensor<u64>>) -> State {
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    batches.state()
}

/// Variable of a process that is a rank: the folder of the states.
const RANK: &str = "LOADER_TEST_RANK";

/// A rank of two saves its state after each batch, until it is killed.
fn be_a_rank(rank: usize, folder: &Path) {
    let mut batches = killed_run(rank, 2).iter().unwrap();
    let temporary = folder.join(format!("temporary-{rank}"));
    while let Some(batch) = batches.next() {
        batch.unwrap();
        fs::write(&temporary, serde_json::to_vec(&batches.state()).unwrap()).unwrap();
        fs::rename(&temporary, state_file(folder, rank)).unwrap();
    }
    thread::park();
}

fn state_file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("state-{rank}"))
}

fn killed_run(rank: usize, world_size: usize) -> DataLoader<Tensor<u64>> {
    let run = Run { world_size, batch_size: 2 + world_size, workers: 2, stops: Vec::new() };
    let dataset = Slow { count: 300, delay: Duration::from_millis(2) };
    run.set(rank, DataLoader::builder(dataset).shuffle(true)).build().unwrap()
}

/// Two ranks with workers are killed in mid-epoch, at different positions. Three ranks load the rest.
#[test]
fn three_ranks_go_on_after_two_that_were_killed() {
    let _watchdog = Watchdog::start();
    if let Some((rank, folder)) = env::var(RANK).ok().as_deref().and_then(|rank| rank.split_once(' ')) {
        return be_a_rank(rank.parse().unwrap(), Path::new(folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let family = Family::empty();
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["elastic::three_ranks_go_on_after_two_that_were_killed", "--exact"]);
        command.env(RANK, format!("{rank} {}", folder.path().display()));
        family.adopt(command.stdout(Stdio::null()));
        ranks.push(command.spawn().unwrap());
    }
    let read = |rank| -> Option<State> {
        fs::read(state_file(folder.path(), rank)).ok().map(|json| serde_json::from_slice(&json).unwrap())
    };
    for (rank, batches) in [(1, 3), (0, 9)] {
        let deadline = Instant::now() + Duration::from_secs(30);
        while read(rank).is_none_or(|state| state.batches() < batches && state.epoch() == 0) {
            assert!(Instant::now() < deadline, "rank {rank} loads nothing");
            thread::sleep(Duration::from_millis(1));
        }
        ranks[rank].kill().unwrap();
        ranks[rank].wait().unwrap();
    }
    family.assert_gone();
    let states = [1, 0].map(|rank| read(rank).unwrap());
    assert!(states.iter().all(|state| state.epoch() == 0), "the ranks were killed in mid-epoch");
    let merged = State::merge(states).unwrap();
    let rest: Vec<Stopped> =
        (0..3).map(|rank| load(&killed_run(rank, 3), Some(&merged), usize::MAX)).collect();
    assert!(rest.iter().all(|rank| rank.batches == rest[0].batches));
    let whole = digest_of(&killed_run(0, 1));
    assert_eq!((rest.iter().map(|rank| rank.digest).sum::<SampleDigest>(), whole.samples()), (whole, 300));
}
