//! Workers that lie: whatever one says, main believes nothing that cannot be true, ends it, and the epoch is what it would have been.

use std::{sync::mpsc, thread, time::Duration};

use loader_core::{Builder, Error, kind::MapStyle, prelude::*};
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

/// Lies that are seen as such at once, with what is said of each.
const SEEN: [(Lie, &str); 23] = [
    (Lie::OthersTask, "which is not its to answer"),
    (Lie::FutureTask, "which is not its to answer"),
    (Lie::OtherSlot, "which is not its to answer"),
    (Lie::OtherGeneration, "which is not its to answer"),
    (Lie::LargerSlot, "which is not its to answer"),
    (Lie::BeyondSlot, "its batch reaches beyond its slot"),
    (Lie::EndlessBatch, "its batch reaches beyond its slot"),
    (Lie::AllSamplesBad, "it left samples of task"),
    (Lie::SampleLeftOut, "it left samples of task"),
    (Lie::ManyLeftOut, "more bad samples than a batch may have"),
    (Lie::Exhausted, "it has no more samples for task"),
    (Lie::Skipped, "of an epoch that is not over"),
    (Lie::Withdrawn, "for withdrawn"),
    (Lie::Resumed, "it resumed with epoch 7"),
    (Lie::Unused, "for which it had only one"),
    (Lie::Vacated, "unasked"),
    (Lie::AsksTwice, "which is not its to answer"),
    (Lie::AsksAgain, "it asked twice for a slot"),
    (Lie::AsksForNothing, "no larger than the one it has"),
    (Lie::Advances(1), "further in its shard than a batch can"),
    (Lie::ReadyForEver, "it said twice whether it is ready"),
    (Lie::SaysBye, "it ends although it was not told to"),
    (Lie::Oversized, "for a limit that it does not have"),
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
        for (lie, said) in SEEN {
            let (warned, warnings) = mpsc::channel();
            let loader =
                build(|builder| builder.on_warning(move |warning| warned.send(warning.to_string()).unwrap()));
            assert_soon(assert_survived(&loader, lie, expected));
            drop(loader);
            let warnings: Vec<String> = warnings.iter().collect();
            let [warning] = &warnings[..] else { panic!("{lie:?}: {warnings:?}") };
            assert!(warning.contains("was killed, since it broke the protocol"), "{lie:?}: {warning}");
            assert!(warning.contains(said), "{lie:?}: {warning}");
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
            let loader = build(2).on_warning(move |warning| warned.send(warning.to_string()).unwrap());
            let loader = loader.build().unwrap();
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_soon(took);
            assert_eq!(digest.unwrap(), expected, "{lie:?}");
            assert_eq!(batches.report().samples, 120, "{lie:?}");
            drop((batches, loader));
            let warnings: Vec<String> = warnings.iter().collect();
            let [warning] = &warnings[..] else { panic!("{lie:?}: {warnings:?}") };
            assert!(warning.contains("further in its shard than a batch can"), "{lie:?}: {warning}");
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
            let loader = build(2).on_warning(move |warning| warned.send(warning.to_string()).unwrap());
            let loader = loader.build().unwrap();
            Lie::ExhaustedWhenAsked.prepare();
            let mut batches = loader.resume(&state).unwrap();
            let (digest, took) = timed(|| digest_rest(&mut batches));
            assert_eq!(digest.unwrap(), expected);
            assert_soon(took);
            drop((batches, loader));
            if warnings.iter().any(|warning| warning.contains("for which it has a batch")) {
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
            builder.hedge(true).on_warning(move |warning| warned.send(warning.to_string()).unwrap())
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
        let warnings: Vec<String> = warnings.iter().collect();
        assert!(warnings.iter().any(|warning| warning.contains("unasked")), "{warnings:?}");
    });
}

#[test]
fn without_replacement_the_error_says_what_it_did() {
    alone(|| {
        let before = Before::take();
        for (lie, said) in SEEN {
            let loader = build(|builder| builder.on_worker_death(OnWorkerDeath::Fail));
            lie.prepare();
            let mut batches = loader.iter().unwrap();
            let (error, took) = timed(|| batches.find_map(Result::err));
            assert_soon(took);
            let Some(error @ Error::WorkerMisbehaved { .. }) = error else { panic!("{lie:?}: {error:?}") };
            assert!(error.ends_iteration() && batches.next().is_none(), "{lie:?}");
            assert!(error.to_string().contains(said), "{lie:?}: {error}");
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
