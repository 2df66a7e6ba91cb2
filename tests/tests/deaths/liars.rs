//! Workers that lie: whatever one says, main believes nothing that cannot be true, ends it, and the epoch is what it would have been.

use std::{sync::mpsc, thread, time::Duration};

use loader_core::{
    Builder, Error, ExitCause,
    ProtocolViolation::{self, *},
    Warning, WorkerExit,
    kind::MapStyle,
    prelude::*,
};
use loader_ipc::frame::MAX_BAD_SAMPLES;
use loader_tests::{
    alone::alone,
    datasets::{Counting, Noise, NoiseSample},
    digest, digest_rest,
    lies::{LATE, Lie},
    timing::{assert_soon, timed},
    traces::Before,
};

const LIAR: &str = env!("CARGO_BIN_EXE_test-liar");

type Loader = DataLoader<<NoiseSample as Sample>::Batch>;

/// A lie, and the test for the violation that main sees in it.
type Seen = (Lie, fn(&ProtocolViolation) -> bool);

/// Lies that are seen as such at once.
const SEEN: [Seen; 23] = [
    (Lie::OthersTask, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::FutureTask, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::OtherSlot, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::OtherGeneration, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::LargerSlot, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::BeyondSlot, |seen| matches!(seen, BatchBeyondSlot)),
    (Lie::EndlessBatch, |seen| matches!(seen, BatchBeyondSlot)),
    (Lie::AllSamplesBad, |seen| matches!(seen, SamplesLeftOut { .. })),
    (Lie::SampleLeftOut, |seen| matches!(seen, SamplesLeftOut { .. })),
    (Lie::ManyLeftOut, |seen| matches!(seen, TooManyBadSamples { .. })),
    (Lie::Exhausted, |seen| matches!(seen, ExhaustedWithIndices { .. })),
    (Lie::Skipped, |seen| matches!(seen, SkippedInEpoch { .. })),
    (Lie::Withdrawn, |seen| matches!(seen, NotWithdrawn { .. })),
    (Lie::Resumed, |seen| matches!(seen, UnexpectedResume { epoch: 7 })),
    (Lie::Unused, |seen| matches!(seen, NoSecondSlot { .. })),
    (Lie::Vacated, |seen| matches!(seen, VacatedUnasked { .. })),
    (Lie::AsksTwice, |seen| matches!(seen, NotItsTask { .. })),
    (Lie::AsksAgain, |seen| matches!(seen, AskedTwice { .. })),
    (Lie::AsksForNothing, |seen| matches!(seen, SlotNotLarger)),
    (Lie::Advances(1), |seen| matches!(seen, PositionTooFar { position: 1, max: 0, .. })),
    (Lie::ReadyForEver, |seen| matches!(seen, ReadyTwice)),
    (Lie::SaysBye, |seen| matches!(seen, UnexpectedBye)),
    (Lie::Oversized, |seen| matches!(seen, NoMemoryLimit)),
];

fn build(tune: impl FnOnce(Tuned) -> Tuned) -> Loader {
    let builder = DataLoader::builder(Noise { count: 120 }).batch_size(4).shuffle(true).seed(3);
    let builder = builder.num_workers(2).worker_program(LIAR).registered("noise");
    tune(builder).build().unwrap()
}

type Tuned = Builder<MapStyle<Noise>>;

fn expected() -> (u64, u64) {
    let loader = DataLoader::builder(Noise { count: 120 }).batch_size(4).shuffle(true).seed(3).build();
    digest(loader.unwrap().iter().unwrap()).unwrap()
}

/// Returns the violation for which main has replaced a worker.
fn violation(warning: &Warning) -> &ProtocolViolation {
    match warning {
        Warning::WorkerReplaced {
            exit: WorkerExit { cause: Some(ExitCause::Misbehaved(violation)), .. },
            ..
        } => violation,
        other => panic!("{other:?}"),
    }
}

/// Loads an epoch in which one worker tells `lie`: it is what it would have been, and one worker was replaced. Gives how long it took.
fn assert_survived(loader: &Loader, lie: Lie, expected: (u64, u64)) -> Duration {
    lie.prepare();
    let mut batches = loader.iter().unwrap();
    let (digest, took) = timed(|| digest_rest(&mut batches));
    assert_eq!(digest.unwrap(), expected, "{lie:?}");
    assert_eq!(batches.report().restarts, 1, "{lie:?}");
    took
}

#[test]
fn one_that_lies_is_replaced_and_nothing_is_lost() {
    alone(|| {
        let before = Before::take();
        let expected = expected();
        for (lie, is_it) in SEEN {
            let (warned, warnings) = mpsc::channel();
            let loader =
                build(|builder| builder.on_warning(move |warning| warned.send(warning.clone()).unwrap()));
            assert_soon(assert_survived(&loader, lie, expected));
            drop(loader);
            let warnings: Vec<Warning> = warnings.iter().collect();
            let [warning] = &warnings[..] else { panic!("{lie:?}: {warnings:?}") };
            assert!(is_it(violation(warning)), "{lie:?}: {warning:?}");
        }
        before.assert_nothing_left();
    });
}

/// A worker reports a position in its shard that one batch cannot have reached.
#[test]
fn one_that_skips_the_rest_of_a_shard_is_replaced_and_nothing_is_lost() {
    alone(|| {
        let before = Before::take();
        let build = |workers| {
            let builder = DataLoader::stream(Counting { count: 120 }).shards(2).batch_size(4);
            builder.num_workers(workers).worker_program(LIAR).registered("counting")
        };
        let expected = digest(build(0).build().unwrap().iter().unwrap()).unwrap();
        let most = 4 + MAX_BAD_SAMPLES as u64;
        for lie in [Lie::Advances(u64::MAX), Lie::Advances(most + 1), Lie::FailsFarAhead] {
            let (warned, warnings) = mpsc::channel();
            let loader = build(2).on_warning(move |warning| warned.send(warning.clone()).unwrap());
            let loader = loader.build().unwrap();
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_soon(took);
            assert_eq!(digest.unwrap(), expected, "{lie:?}");
            assert_eq!(batches.report().samples, 120, "{lie:?}");
            drop((batches, loader));
            let warnings: Vec<Warning> = warnings.iter().collect();
            let [warning] = &warnings[..] else { panic!("{lie:?}: {warnings:?}") };
            assert!(matches!(violation(warning), PositionTooFar { .. }), "{lie:?}: {warning:?}");
        }
        before.assert_nothing_left();
    });
}

/// A worker says that its shard is over after main has asked it for its slot. The other shard must not end with it.
#[test]
fn one_that_ends_its_shard_instead_of_giving_its_slot_back_is_replaced_and_nothing_is_lost() {
    alone(|| {
        let build = |workers| {
            let builder = DataLoader::stream(Counting { count: 60_000 }).shards(2).batch_size(10_000);
            // A batch takes 120 kB, so there is room for one.
            let builder = builder.num_workers(workers).shared_memory_limit(128 << 10);
            let builder = if workers > 0 { builder.prefetch_factor(1) } else { builder };
            builder.worker_program(LIAR).registered("counting")
        };
        let local = build(0).build().unwrap();
        let mut batches = local.iter().unwrap();
        batches.next().unwrap().unwrap();
        // The first task is worker 1's, and worker 0, which most often starts first, lies.
        let state = batches.state();
        let expected = digest_rest(&mut local.resume(&state).unwrap()).unwrap();
        for _ in 0..20 {
            let (warned, warnings) = mpsc::channel();
            let loader = build(2).on_warning(move |warning| warned.send(warning.clone()).unwrap());
            let loader = loader.build().unwrap();
            Lie::ExhaustedWhenAsked.prepare();
            let mut batches = loader.resume(&state).unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_eq!(digest.unwrap(), expected);
            assert_soon(took);
            drop((batches, loader));
            if warnings.iter().any(|warning| matches!(violation(&warning), ExhaustedWithBatch { .. })) {
                return;
            }
        }
        panic!("the worker with the first task lied each time");
    });
}

/// A worker whose batch another one has loaded meanwhile gives back its slot unasked.
#[test]
fn one_that_gives_back_the_slot_of_a_late_batch_unasked_is_replaced() {
    alone(|| {
        let (warned, warnings) = mpsc::channel();
        let loader = build(|builder| {
            builder.hedge(true).on_warning(move |warning| warned.send(warning.clone()).unwrap())
        });
        Lie::VacatedLate.prepare();
        let mut batches = loader.iter().unwrap();
        let mut noise = Digest::new();
        for number in 0..30 {
            if number == 10 {
                thread::sleep(2 * LATE);
            }
            let batch = batches.next().unwrap().unwrap();
            noise.add(&batches.last_batch().unwrap().indices, &batch);
        }
        assert!(batches.next().is_none());
        assert_eq!((noise.order(), noise.content()), expected());
        drop((batches, loader));
        let warnings: Vec<Warning> = warnings.iter().collect();
        assert!(
            warnings.iter().any(|warning| matches!(violation(warning), VacatedUnasked { .. })),
            "{warnings:?}"
        );
    });
}

#[test]
fn without_replacement_the_error_says_what_it_did() {
    alone(|| {
        let before = Before::take();
        for (lie, is_it) in SEEN {
            let loader = build(|builder| builder.on_worker_death(OnWorkerDeath::Fail));
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (error, took) = timed(|| batches.find_map(Result::err));
            assert_soon(took);
            let Some(error) = error else { panic!("{lie:?}: no error") };
            assert!(error.ends_iteration() && batches.next().is_none(), "{lie:?}");
            assert!(
                matches!(&error, Error::WorkerMisbehaved { violation, .. } if is_it(violation)),
                "{error:?}"
            );
        }
        before.assert_nothing_left();
    });
}

#[test]
fn noise_in_its_queues_hurts_nobody() {
    alone(|| {
        let before = Before::take();
        let expected = expected();
        for _ in 0..20 {
            let loader = build(|builder| builder.on_warning(|_| {}));
            assert_soon(assert_survived(&loader, Lie::Noise, expected));
        }
        before.assert_nothing_left();
    });
}

#[test]
fn no_memory_can_be_cut_off_under_main() {
    alone(|| {
        let before = Before::take();
        let loader = build(|builder| builder.on_warning(|_| {}));
        // It ends only if it could change no size; otherwise it waits.
        assert_soon(assert_survived(&loader, Lie::Truncates, expected()));
        drop(loader);
        before.assert_nothing_left();
    });
}

/// A worker can disturb the others through the control page: main gets every batch, or an error that says that a worker was late or
/// was replaced too often.
#[test]
fn noise_in_what_all_share_does_not_hang_main() {
    alone(|| {
        let before = Before::take();
        let (expected, timeout) = (expected(), Duration::from_secs(2));
        for round in 0..2 {
            let loader = build(|builder| builder.timeout(timeout).on_warning(|_| {}));
            Lie::NoiseForAll.prepare();
            let mut batches = loader.iter().unwrap();
            let (outcome, took) = timed(|| digest_rest(&mut batches));
            println!("round {round}: {outcome:?} after {took:?}");
            assert_soon(took);
            match outcome {
                Ok(digest) => assert_eq!(digest, expected, "round {round}"),
                Err(Error::TimedOut { after, .. }) => assert_eq!(after, timeout),
                Err(Error::WorkerExited { .. } | Error::WorkerMisbehaved { .. }) => {}
                Err(error) => panic!("round {round}: {error:?}"),
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn one_that_says_nothing_is_ended_after_a_while() {
    alone(|| {
        let before = Before::take();
        // And one that says that it ends, and does not.
        let limit = 1 << 40;
        for (lie, limit) in [(Lie::Silent, None), (Lie::Oversized, Some(limit))] {
            let loader = build(|builder| {
                let builder = builder.sample_timeout(Duration::from_secs(1)).on_warning(|_| {});
                limit.into_iter().fold(builder, |builder, limit| builder.worker_memory_limit(limit))
            });
            let took = assert_survived(&loader, lie, expected());
            println!("{lie:?}: {took:?}");
            assert!((5..12).contains(&took.as_secs()), "{lie:?}: {took:?}");
        }
        before.assert_nothing_left();
    });
}
