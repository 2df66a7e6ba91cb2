//! Workers that break the protocol: main notices it, replaces the worker, and the epoch stays the same.

use std::{sync::mpsc::Receiver, thread, time::Duration};

use loader_core::{
    Builder, Error, ExitCause, Iter,
    ProtocolViolation::{self, *},
    Warning, WorkerExit,
    kind::MapStyle,
    prelude::*,
};
use loader_ipc::frame::MAX_BAD_SAMPLES;
use loader_tests::{
    alone::alone,
    datasets::{Counting, Noise, NoiseSample},
    digest_rest,
    lies::{LATE, Lie},
    timing::{assert_soon, timed},
    traces::Before,
};

use crate::{noise, noise_digest, with_warnings};

const LIAR: &str = env!("CARGO_BIN_EXE_test-liar");

type NoiseBatch = <NoiseSample as Sample>::Batch;

/// A lie, and the test for the violation that main sees in it.
type Seen = (Lie, fn(&ProtocolViolation) -> bool);

/// Lies that main notices at once.
const SEEN: [Seen; 23] = [
    (Lie::OtherWorkersTask, |seen| matches!(seen, NotItsTask { .. })),
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
    (Lie::RepeatsReady, |seen| matches!(seen, ReadyTwice)),
    (Lie::SaysBye, |seen| matches!(seen, UnexpectedBye)),
    (Lie::Oversized, |seen| matches!(seen, NoMemoryLimit)),
];

/// Returns a builder for [`noise`] whose workers are the program that lies.
fn lying() -> Builder<MapStyle<Noise>> {
    noise(120).num_workers(2).worker_program(LIAR).registered("noise").on_warning(|_| {})
}

fn expected() -> (u64, u64) {
    noise_digest(120, 0)
}

/// Returns the violation for which main replaced a worker.
fn violation(warning: &Warning) -> Option<&ProtocolViolation> {
    match warning {
        Warning::WorkerReplaced {
            exit: WorkerExit { cause: Some(ExitCause::Misbehaved(violation)), .. },
            ..
        } => Some(violation),
        _ => None,
    }
}

/// Checks that main gave one warning, of a worker that it replaced for a violation for which `is_it` is true.
fn assert_one_violation(lie: Lie, warnings: &Receiver<Warning>, is_it: impl Fn(&ProtocolViolation) -> bool) {
    let warnings: Vec<Warning> = warnings.iter().collect();
    let [warning] = &warnings[..] else { panic!("{lie:?}: {warnings:?}") };
    assert!(violation(warning).is_some_and(is_it), "{lie:?}: {warning:?}");
}

/// Checks that the batches are those of an undisturbed epoch and that main replaced one worker; returns how
/// long they took.
fn assert_equal_after_one_restart(batches: &mut Iter<NoiseBatch>, lie: Lie) -> Duration {
    let (digest, took) = timed(|| digest_rest(batches));
    assert_eq!(digest.unwrap(), expected(), "{lie:?}");
    assert_eq!(batches.report().restarts, 1, "{lie:?}");
    took
}

/// Starts an epoch in which one worker tells `lie`. Returns when a worker has begun to do so.
fn lie_in(loader: &DataLoader<NoiseBatch>, lie: Lie) -> Iter<NoiseBatch> {
    lie.prepare();
    let batches = loader.iter().unwrap();
    Lie::wait_until_taken();
    batches
}

/// Loads an epoch in which one worker tells `lie`, and checks it.
fn assert_survives(loader: &DataLoader<NoiseBatch>, lie: Lie) {
    assert_soon(assert_equal_after_one_restart(&mut lie_in(loader, lie), lie));
}

#[test]
fn a_worker_that_lies_is_replaced_and_nothing_is_lost() {
    alone(|| {
        let before = Before::take();
        for (lie, is_it) in SEEN {
            let (builder, warnings) = with_warnings(lying());
            let loader = builder.build().unwrap();
            assert_survives(&loader, lie);
            drop(loader);
            assert_one_violation(lie, &warnings, is_it);
        }
        before.assert_nothing_left();
    });
}

#[test]
fn without_replacement_the_error_names_the_violation() {
    alone(|| {
        let before = Before::take();
        for (lie, is_it) in SEEN {
            let loader = lying().on_worker_death(OnWorkerDeath::Fail).build().unwrap();
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (error, took) = timed(|| batches.find_map(Result::err));
            assert_soon(took);
            let Some(error) = error else { panic!("{lie:?}: no error") };
            assert!(error.ends_iteration() && batches.next().is_none(), "{lie:?}");
            let is_expected = matches!(&error, Error::WorkerMisbehaved { violation, .. } if is_it(violation));
            assert!(is_expected, "{error:?}");
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_cannot_skip_the_rest_of_a_shard() {
    alone(|| {
        let before = Before::take();
        let build = |workers| {
            let builder = DataLoader::stream(Counting { count: 120 }).shards(2).batch_size(4);
            builder.num_workers(workers).worker_program(LIAR).registered("counting")
        };
        let expected = digest_rest(&mut build(0).build().unwrap().iter().unwrap()).unwrap();
        // A batch can advance its shard by its own samples and the bad ones before them.
        let max = 4 + MAX_BAD_SAMPLES as u64;
        for lie in [Lie::Advances(u64::MAX), Lie::Advances(max + 1), Lie::FailsFarAhead] {
            let (builder, warnings) = with_warnings(build(2));
            let loader = builder.build().unwrap();
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_soon(took);
            assert_eq!(digest.unwrap(), expected, "{lie:?}");
            assert_eq!(batches.report().samples, 120, "{lie:?}");
            drop((batches, loader));
            assert_one_violation(lie, &warnings, |seen| matches!(seen, PositionTooFar { .. }));
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_cannot_end_a_shard_when_main_asks_for_its_slot() {
    alone(|| {
        let build = |workers| {
            let builder = DataLoader::stream(Counting { count: 60_000 }).shards(2).batch_size(10_000);
            // A batch takes 120 kB, so the limit has room for one.
            let builder = builder.num_workers(workers).shared_memory_limit(128 << 10);
            let builder = if workers > 0 { builder.prefetch_factor(1) } else { builder };
            builder.worker_program(LIAR).registered("counting")
        };
        let local = build(0).build().unwrap();
        let mut batches = local.iter().unwrap();
        batches.next().unwrap().unwrap();
        // From here, worker 1 has the first task. The worker that starts first, mostly worker 0, lies.
        let state = batches.state();
        let expected = digest_rest(&mut local.resume(&state).unwrap()).unwrap();
        for _ in 0..20 {
            let (builder, warnings) = with_warnings(build(2));
            let loader = builder.build().unwrap();
            Lie::ExhaustedWhenAsked.prepare();
            let mut batches = loader.resume(&state).unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_eq!(digest.unwrap(), expected);
            assert_soon(took);
            drop((batches, loader));
            if warnings.iter().any(|warning| matches!(violation(&warning), Some(ExhaustedWithBatch { .. }))) {
                return;
            }
        }
        panic!("the worker with the first task lied each time");
    });
}

#[test]
fn a_worker_cannot_give_back_the_slot_of_a_late_batch_unasked() {
    alone(|| {
        let (builder, warnings) = with_warnings(lying().hedge(true));
        let loader = builder.build().unwrap();
        Lie::VacatedLate.prepare();
        let mut batches = loader.iter().unwrap();
        let mut digest = BatchDigest::new();
        for number in 0..30 {
            if number == 10 {
                thread::sleep(2 * LATE);
            }
            let batch = batches.next().unwrap().unwrap();
            digest.add(&batches.last_batch().unwrap().indices, &batch);
        }
        assert!(batches.next().is_none());
        assert_eq!((digest.order(), digest.content()), expected());
        drop((batches, loader));
        let warnings: Vec<Warning> = warnings.iter().collect();
        let is_it = |warning| matches!(violation(warning), Some(VacatedUnasked { .. }));
        assert!(warnings.iter().any(is_it), "{warnings:?}");
    });
}

#[test]
fn noise_in_the_queues_of_a_worker_changes_nothing() {
    alone(|| {
        let before = Before::take();
        for _ in 0..20 {
            assert_survives(&lying().build().unwrap(), Lie::Noise);
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_cannot_resize_memory_that_main_has_mapped() {
    alone(|| {
        let before = Before::take();
        // The worker ends if it could change no size; otherwise it waits.
        assert_survives(&lying().build().unwrap(), Lie::Truncates);
        before.assert_nothing_left();
    });
}

/// A worker can disturb the others through the control page. Main gets every batch, or an error that says
/// that a worker was late or was replaced too often.
#[test]
fn noise_in_the_control_page_does_not_hang_main() {
    alone(|| {
        let before = Before::take();
        let (expected, timeout) = (expected(), Duration::from_secs(2));
        // In parallel, because a drop waits 5 s for the liar.
        thread::scope(|scope| {
            for round in 0..2 {
                let loader = lying().timeout(timeout).build().unwrap();
                let mut batches = lie_in(&loader, Lie::NoiseForAll);
                scope.spawn(move || {
                    let (outcome, took) = timed(|| digest_rest(&mut batches));
                    println!("round {round}: {outcome:?} after {took:?}");
                    assert_soon(took);
                    match outcome {
                        Ok(digest) => assert_eq!(digest, expected, "round {round}"),
                        Err(Error::TimedOut { after, .. }) => assert_eq!(after, timeout),
                        Err(Error::WorkerExited { .. } | Error::WorkerMisbehaved { .. }) => {}
                        Err(error) => panic!("round {round}: {error:?}"),
                    }
                });
            }
        });
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_that_says_nothing_or_does_not_end_as_it_says_is_killed_after_5_s() {
    alone(|| {
        let before = Before::take();
        let silent = lying().sample_timeout(Duration::from_secs(1));
        let oversized = lying().sample_timeout(Duration::from_secs(1)).worker_memory_limit(1 << 40);
        // In parallel, because main waits 5 s for each of them.
        thread::scope(|scope| {
            for (lie, builder) in [(Lie::Silent, silent), (Lie::Oversized, oversized)] {
                let mut batches = lie_in(&builder.build().unwrap(), lie);
                scope.spawn(move || {
                    let took = assert_equal_after_one_restart(&mut batches, lie);
                    println!("{lie:?}: {took:?}");
                    assert!((5..12).contains(&took.as_secs()), "{lie:?}: {took:?}");
                });
            }
        });
        before.assert_nothing_left();
    });
}
