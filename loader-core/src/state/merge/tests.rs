use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    data::sampler::{BatchSampler, EpochOrder, RandomSampler, Sharing},
    options::Order,
    state::{Pipeline, SharedOrder},
};

/// A run of several ranks over a map-style dataset.
#[derive(Debug, Clone)]
struct Run {
    world_size: usize,
    batch_size: usize,
    /// For each rank, how many batches it returns, and which of the next ones it returns ahead of their turn.
    stops: Vec<(usize, Vec<bool>)>,
    /// For each rank, whether it asks for the end of the epoch after its last batch.
    has_ended: Vec<bool>,
}

fn run() -> impl Strategy<Value = Run> {
    let stops = prop::collection::vec((0usize..12, prop::collection::vec(any::<bool>(), 0..4)), 6);
    let stops = (stops, any::<bool>()).prop_map(|(mut stops, is_synchronous)| {
        if is_synchronous {
            let stop = (stops[0].0, Vec::new());
            stops.fill(stop);
        }
        stops
    });
    let has_ended = prop::collection::vec(any::<bool>(), 6);
    (1usize..6, 1usize..6, stops, has_ended).prop_map(|(world_size, batch_size, stops, has_ended)| Run {
        world_size,
        batch_size,
        stops,
        has_ended,
    })
}

/// The order of an epoch, and what all runs have in common.
#[derive(Debug, Clone, Copy)]
struct Epochs {
    samples: usize,
    order: Order,
    shuffle: bool,
    drop_last: bool,
}

impl Epochs {
    fn sharing(self, rank: usize, run: &Run) -> Sharing {
        let Self { samples, shuffle, drop_last, .. } = self;
        let order = EpochOrder::Distributed(share(samples, run.world_size, rank, false).shuffle(shuffle));
        Sharing { order, rank, world_size: run.world_size, batch_size: run.batch_size, drop_last }
    }

    fn origin(self, rank: usize, run: &Run) -> Origin {
        let sharing = self.sharing(rank, run);
        let order = sharing.order.fingerprint(self.order).to_owned();
        let shared = SharedOrder { order, batch_size: run.batch_size as u64 };
        let fingerprint = Batching::Sampler(format!("rank {rank} of {run:?}"));
        let policy = if self.drop_last { SharePolicy::DropLast } else { SharePolicy::Repeat };
        Origin {
            seed: 7,
            order: self.order,
            samples: Some(self.samples),
            share: Share { rank, world_size: run.world_size, policy },
            pipeline: Arc::new(Pipeline::new("dataset".to_owned(), fingerprint, Some(shared))),
        }
    }

    /// Lets a rank resume from the merged state `from`, return batches until it stops, and save its state. Notes
    /// the indices that it returned in `seen`. Returns the state and the number of batches in all.
    fn load(self, rank: usize, run: &Run, from: &State, ends: bool, seen: &mut [u32]) -> (State, usize) {
        let origin = self.origin(rank, run);
        let state = from.of_rank(&origin).unwrap();
        let epoch = origin.epoch(0);
        let layers = state.taken_before().to_vec();
        let sampler = self.sharing(rank, run).of_remaining(&layers);
        let batches: Vec<Vec<usize>> = sampler.batches(epoch).collect();
        assert_eq!(batches.len(), sampler.len(epoch));
        let (next, ahead) = &run.stops[rank];
        let next = if ends { batches.len() } else { *next.min(&batches.len()) };
        let ahead = ahead.iter().enumerate().filter(|(_, returned)| **returned).map(|(at, _)| next + 1 + at);
        let ahead: Vec<usize> = ahead.filter(|&number| number < batches.len()).collect();
        let mut digest = state.digest.unwrap_or_default();
        for number in (0..next).chain(ahead.iter().copied()) {
            let repeated = if number + 1 == batches.len() { sampler.repeated(epoch) } else { 0 };
            let counted = &batches[number][..batches[number].len() - repeated];
            counted.iter().for_each(|&index| seen[index] += 1);
            digest += SampleDigest::of(&counted.iter().map(|&index| hash(index)).collect::<Vec<_>>());
        }
        // Whether `next` has returned `None` after the last batch.
        let has_ended = next == batches.len() && run.has_ended[rank];
        let state = if has_ended {
            State::start(&origin, 1).with_digest_before(Some(digest))
        } else {
            let (next, ahead) = (next as u64, ahead.into_iter().map(|number| number as u64).collect());
            let batches = batches.len() as u64;
            let position =
                BatchesPosition { next, ahead, batches, is_end: false, fingerprint: 0, taken: layers };
            State::new(&origin, 0, 0, Some(digest), Position::Batches(position))
        };
        (state.with_resumed_from(from.of_rank(&origin).unwrap().resumed_from()), batches.len())
    }
}

fn hash(index: usize) -> u128 {
    u128::from(xxh3_64(&index.to_le_bytes())) << 64 | index as u128
}

proptest! {
    /// Whatever the numbers of ranks, the batch sizes and the positions at which ranks stop.
    #[test]
    fn each_sample_of_the_epoch_comes_once(
        (samples, shuffle, drop_last, torch) in (1usize..150, any::<bool>(), any::<bool>(), any::<bool>()),
        runs in prop::collection::vec(run(), 2..5),
    ) {
        let order = if torch { Order::Torch } else { Order::Native };
        let epochs = Epochs { samples, order, shuffle, drop_last };
        let mut seen = vec![0; samples];
        let starts = (0..runs[0].world_size).map(|rank| State::start(&epochs.origin(rank, &runs[0]), 0));
        let mut state = State::merge(starts).unwrap();
        let mut digest = None;
        let (mut at_most_left, mut has_batches) = (0, true);
        for (number, run) in runs.iter().enumerate() {
            let is_last = number + 1 == runs.len();
            let ranks = (0..run.world_size).map(|rank| epochs.load(rank, run, &state, is_last, &mut seen));
            let (states, batches): (Vec<State>, Vec<usize>) = ranks.unzip();
            prop_assert!(batches.iter().all(|&count| count == batches[0]), "unequal steps: {:?}", batches);
            at_most_left = run.world_size * run.batch_size - 1;
            has_batches = batches[0] > 0;
            let of_epoch = |state: &State| if state.epoch() == 1 { state.digest_before } else { state.digest };
            let sum = states.iter().map(of_epoch).sum::<Option<SampleDigest>>();
            state = State::merge(states.into_iter().rev()).unwrap();
            let json = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(&serde_json::from_str::<State>(&json).unwrap(), &state);
            digest = sum;
            if state.epoch() == 1 {
                break;
            }
            prop_assert_eq!(state.digest().unwrap_or_default(), sum.unwrap_or_default());
            if Remaining::new(samples, state.taken_before()).len() == 0 {
                break;
            }
        }
        if state.epoch() == 1 {
            prop_assert_eq!(state.position(), &Position::Start);
        } else if has_batches {
            prop_assert_eq!(Remaining::new(samples, state.taken_before()).len(), 0);
        }
        let expected = (0..samples).filter(|&index| seen[index] > 0).map(hash).collect::<Vec<_>>();
        prop_assert_eq!(digest, Some(SampleDigest::of(&expected)));
        let left = samples - expected.len();
        prop_assert!(seen.iter().all(|&times| times <= 1), "a sample came twice: {:?}", seen);
        prop_assert!(left <= if drop_last { at_most_left } else { 0 }, "{} samples left out", left);
    }

    /// Some ranks give the states of the run before, because they were killed before they saved newer ones.
    #[test]
    fn states_of_different_runs_are_refused(
        samples in 1usize..150, drop_last: bool, world_size in 2usize..6, batch_size in 1usize..6,
        runs in prop::collection::vec((run(), any::<bool>()), 2..5), stale in 1u32..31,
    ) {
        let epochs = Epochs { samples, order: Order::Native, shuffle: true, drop_last };
        let stale = stale % ((1 << world_size) - 2) + 1;
        let first = Run { world_size, batch_size, stops: Vec::new(), has_ended: Vec::new() };
        let mut before: Vec<_> =
            (0..world_size).map(|rank| State::start(&epochs.origin(rank, &first), 0)).collect();
        let mut from = State::merge(before.iter().cloned()).unwrap();
        for (run, ends) in runs {
            let run = Run { world_size, batch_size, ..run };
            let mut load = |rank| epochs.load(rank, &run, &from, ends, &mut vec![0; samples]).0;
            let after: Vec<_> = (0..world_size).map(&mut load).collect();
            let mixed = (0..world_size).map(|rank| match stale >> rank & 1 {
                1 => before[rank].clone(),
                _ => after[rank].clone(),
            });
            let mixed = State::merge(mixed);
            // The first run begins with the start of the epoch, and a run that returned nothing leaves the same.
            if before.iter().any(|state| state.resumed_from() != after[0].resumed_from()) {
                prop_assert!(matches!(mixed, Err(MergeError::OtherRun { .. })), "{:?}", mixed);
            } else {
                prop_assert!(mixed.is_ok(), "{:?}", mixed);
            }
            from = State::merge(after.iter().cloned()).unwrap();
            if from.epoch() > 0 {
                break;
            }
            before = after;
        }
    }

    /// A run whose ranks all stopped at the same batch goes on with the batches that were left, also with the
    /// repeated samples, if the number of ranks is the same.
    #[test]
    fn the_same_ranks_go_on_with_the_same_batches(
        (samples, world_size, batch_size, stop) in (1usize..100, 1usize..6, 1usize..6, 0usize..12),
        drop_last: bool,
    ) {
        let epochs = Epochs { samples, order: Order::Native, shuffle: true, drop_last };
        let stops = vec![(stop, Vec::new()); world_size];
        let run = Run { world_size, batch_size, stops, has_ended: vec![false; world_size] };
        let merged = |states: Vec<State>| State::merge(states).unwrap();
        let start = merged((0..world_size).map(|rank| State::start(&epochs.origin(rank, &run), 0)).collect());
        let mut seen = vec![0; samples];
        let load = |rank| epochs.load(rank, &run, &start, false, &mut seen).0;
        let state = merged((0..world_size).map(load).collect());
        for rank in (0..world_size).filter(|_| state.epoch() == 0) {
            let batches = |state: &State| -> Vec<Vec<usize>> {
                let epoch = epochs.origin(rank, &run).epoch(0);
                epochs.sharing(rank, &run).of_remaining(state.taken_before()).batches(epoch).collect()
            };
            prop_assert_eq!(batches(&state), &batches(&start)[stop.min(batches(&start).len())..]);
        }
    }
}

const EPOCHS: Epochs = Epochs { samples: 100, order: Order::Native, shuffle: true, drop_last: false };

fn three() -> Run {
    Run { world_size: 3, batch_size: 5, stops: vec![(2, Vec::new()); 3], has_ended: vec![true; 3] }
}

/// The states of three ranks that have returned two batches each.
fn states() -> Vec<State> {
    let start = State::merge((0..3).map(|rank| State::start(&EPOCHS.origin(rank, &three()), 0))).unwrap();
    (0..3).map(|rank| EPOCHS.load(rank, &three(), &start, false, &mut [0; 100]).0).collect()
}

#[test]
fn states_that_do_not_belong_together_are_refused_by_rank_and_part() {
    let refusal = |change: &dyn Fn(&mut Vec<State>)| {
        let mut states = states();
        change(&mut states);
        State::merge(states).unwrap_err().to_string()
    };
    let different = "the states are not of one run: the";
    type Change = dyn Fn(&mut Vec<State>);
    let cases: [(&Change, &str); 10] = [
        (&|states| states[2].share.rank = 3, "a state has rank 3, which is not below its world size 3;"),
        (&Vec::clear, "there are no states to merge; give the states of all ranks"),
        (
            &|states| drop(states.remove(1)),
            "the state of rank 1 of 3 is missing; give the states of all ranks",
        ),
        (
            &|states| states[2].share.rank = 0,
            "there are two different states of rank 0; give one state of each of the 3 ranks (with group_size, one state of each group)",
        ),
        (
            &|states| states[1].version = 3,
            "the state of rank 1 has format version 3, but this library reads 1;",
        ),
        (&|states| states[2].seed = 8, &format!("{different} seed of rank 2 is 8, that of rank 0 is 7;")),
        (&|states| states[2].epoch = 5, &format!("{different} epoch of rank 2 is 5, that of rank 0 is 0;")),
        (
            &|states| states[1].epoch = 1,
            &format!(
                "{different} epoch of rank 1 is 1, that of rank 0 is 0; give states that all ranks saved in one epoch;"
            ),
        ),
        (
            &|states| states[1].share.world_size = 2,
            &format!("{different} world_size of rank 1 is 2, that of rank 0 is 3;"),
        ),
        (
            &|states| states[0] = State::merge(states.clone()).unwrap(),
            "one of the states is the merged state of 3 ranks;",
        ),
    ];
    for (change, expected) in cases {
        let message = refusal(change);
        assert!(message.starts_with(expected), "{message}");
    }
    // The ranks of a group save equal states.
    let twice = states().into_iter().chain(states());
    assert_eq!(State::merge(twice).unwrap(), State::merge(states()).unwrap());
    let own = |state: &mut State| Arc::make_mut(&mut state.pipeline).shared = None;
    let message = refusal(&|states| states.iter_mut().for_each(own));
    assert!(message.starts_with("the run had the sampler `rank 0 of Run"), "{message}");
}

#[test]
fn states_of_which_one_lacks_the_digest_are_refused() {
    let of_digests = |digests: [bool; 3]| {
        let mut states = states();
        for (state, has_digest) in states.iter_mut().zip(digests) {
            state.digest = has_digest.then(SampleDigest::default);
        }
        State::merge(states)
    };
    assert_eq!(of_digests([false; 3]).unwrap().digest(), None);
    assert_eq!(of_digests([true; 3]).unwrap().digest(), Some(SampleDigest::default()));
    assert_eq!(of_digests([true, false, true]).unwrap_err(), MergeError::DigestMissing { rank: 1, epoch: 0 });
}

#[test]
fn a_merged_state_of_another_order_is_refused() {
    let merged = State::merge(states()).unwrap();
    let one = Run { world_size: 1, ..three() };
    assert_eq!((merged.world_size(), merged.is_merged(), merged.batches()), (3, true, 0));
    merged.of_rank(&EPOCHS.origin(0, &one)).unwrap();
    let refusal = |epochs: Epochs| merged.of_rank(&epochs.origin(0, &one)).unwrap_err().to_string();
    let message = refusal(Epochs { shuffle: false, ..EPOCHS });
    assert!(message.contains("its sampler is shuffle, the loader's is sequential"), "{message}");
    let message = refusal(Epochs { drop_last: true, ..EPOCHS });
    assert!(message.contains("its drop_last is false, the loader's is true"), "{message}");
    // In PyTorch's order, a loader without ranks draws other numbers than the ranks do.
    let random = EpochOrder::Random(RandomSampler::of_loader(100));
    assert_eq!(random.fingerprint(Order::Native), EPOCHS.sharing(0, &one).order.fingerprint(Order::Native));
    assert_ne!(random.fingerprint(Order::Torch), EPOCHS.sharing(0, &one).order.fingerprint(Order::Torch));
}

#[test]
fn ranks_that_stop_at_the_same_batch_add_no_layer() {
    let mut state = State::merge(states()).unwrap();
    for world_size in [2, 3, 1] {
        let run = Run { world_size, ..three() };
        let load = |rank| EPOCHS.load(rank, &run, &state, false, &mut [0; 100]).0;
        state = State::merge((0..world_size).map(load)).unwrap();
    }
    // 2 batches of 5 samples of 3, 2, 3 and 1 ranks.
    let json = serde_json::to_value(&state).unwrap();
    assert_eq!(json["place"], serde_json::json!({ "remaining": [[[[0, 90]]]] }));
}
