//! User code that fails: that batch is lost, with a name; everything else goes on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::ensure;
use loader_core::{Error, Warning, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Noise, SlowFirst},
};
use serde::{Deserialize, Serialize};

/// Loads 10 batches of 3, one of which fails, and gives its error and the number of the good ones.
fn with_fault(fault: Fault, workers: usize) -> (Error, usize) {
    let dataset = Faulty { count: 30, at: 7, fault };
    let loader = DataLoader::builder(dataset).batch_size(3).num_workers(workers).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let (mut error, mut good) = (None, 0);
    while let Some(batch) = batches.next() {
        match batch {
            Ok(batch) => {
                assert_eq!(batch.shape(), [3, 1]);
                good += 1;
            }
            Err(failed) => {
                assert_eq!(batches.last_batch().unwrap().number, 2, "the error stands at the batch's place");
                assert_eq!(good, 2);
                assert!(!failed.ends_iteration());
                error = Some(failed);
            }
        }
    }
    assert_eq!(batches.report().errors, 1);
    (error.unwrap(), good)
}

// PyTorch: P-41, P-42, P-45, X08, U22
#[test]
fn an_error_of_the_dataset_has_its_causes() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 3] {
        let (error, good) = with_fault(Fault::Error, workers);
        assert_eq!(good, 9);
        let Error::DatasetFailed { index: Some(7), batch: 2, worker, failure } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(worker.is_some(), workers > 0);
        assert_eq!(failure.chain, ["reading record 7", "the disk is on fire"]);
        let text = error.to_string();
        assert!(text.starts_with("the dataset failed on batch 2, sample 7"), "{text}");
        assert!(text.ends_with(": reading record 7: the disk is on fire"), "{text}");
    }
}

// PyTorch: P-41, X08, U22
#[test]
fn a_panic_of_the_dataset_has_its_message_and_place() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let (error, good) = with_fault(Fault::Panic, workers);
        assert_eq!(good, 9);
        let Error::DatasetFailed { index: Some(7), failure, .. } = &error else { panic!("{error:?}") };
        assert!(failure.panicked);
        assert_eq!(failure.chain, ["sample 7 panics"]);
        if workers > 0 {
            let backtrace = failure.backtrace.as_deref().unwrap();
            assert!(backtrace.contains("datasets.rs"), "{backtrace}");
            let text = error.to_string();
            assert!(text.contains(": sample 7 panics (at ") && text.contains("datasets.rs:"), "{text}");
        }
    }
}

// PyTorch: C13, X25
#[test]
fn a_sample_of_another_shape_is_named_with_both_shapes() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let (error, good) = with_fault(Fault::Ragged, workers);
        assert_eq!(good, 9);
        let Error::CollateFailed { index: Some(7), batch: 2, .. } = &error else { panic!("{error:?}") };
        let text = error.to_string();
        assert!(text.contains("shape [2] differs from the batch's first sample, [1]"), "{text}");
    }
}

#[test]
fn a_sampler_that_leaves_the_dataset_loses_that_batch() {
    let _watchdog = Watchdog::start();
    #[derive(Debug)]
    struct OneTooFar;
    impl Sampler for OneTooFar {
        fn len(&self) -> usize {
            11
        }

        fn indices(&self, _epoch: loader_core::sampler::Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
            Box::new(0..11)
        }
    }
    for workers in [0, 2] {
        let builder = DataLoader::builder(Noise { count: 10 }).batch_size(2).sampler(OneTooFar);
        let batches: Vec<_> = builder.num_workers(workers).build().unwrap().iter().unwrap().collect();
        assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 5);
        let Err(Error::IndexOutOfRange { index: 10, batch: 5, len: 10 }) = &batches[5] else {
            panic!("{:?}", batches[5])
        };
    }
}

// PyTorch: P-40
#[test]
fn a_worker_hook_that_fails_fails_its_workers_batches() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 8 }).batch_size(2).num_workers(2);
    let loader = builder.worker_init(|worker| {
        ensure!(worker.id() != 1, "worker one is not welcome");
        Ok(())
    });
    let batches: Vec<_> = loader.build().unwrap().iter().unwrap().collect();
    // The last one is worker one's too, unless the other one, idle while it started, got it.
    assert_eq!(batches.iter().take(3).map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let error = batches[1].as_ref().unwrap_err();
    let Error::OpenFailed { worker: Some(1), failure, .. } = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("worker one is not welcome"), "{error}");
    assert_eq!(failure.chain, ["worker one is not welcome"]);
    assert_eq!(
        failure.backtrace.is_some(),
        std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0"),
        "{failure:?}"
    );
}

#[test]
fn a_worker_hook_that_panics_is_told_with_message_and_backtrace() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 8 }).batch_size(2).num_workers(1);
    let loader = builder.worker_init(|_| panic!("no worker is welcome")).build().unwrap();
    let error = loader.iter().unwrap().find_map(Result::err).unwrap();
    let Error::OpenFailed { worker: Some(0), failure, .. } = &error else { panic!("{error:?}") };
    assert!(failure.panicked && failure.chain[0].contains("no worker is welcome"), "{failure:?}");
    let backtrace = failure.backtrace.as_deref().unwrap();
    assert!(backtrace.contains("user_errors.rs"), "{backtrace}");
}

#[derive(Serialize, Deserialize)]
struct Locked {
    #[serde(skip)]
    open: bool,
    fails: bool,
}

impl Dataset for Locked {
    type Sample = (u8, bool);

    fn len(&self) -> usize {
        4
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        ensure!(!self.fails, "the key does not fit");
        self.open = true;
        Ok(())
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u8, bool)> {
        Ok((index as u8, self.open))
    }
}

#[test]
fn setup_runs_in_each_process_and_its_failure_is_told() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let build = |fails| {
            DataLoader::builder(Locked { open: false, fails })
                .batch_size(2)
                .num_workers(workers)
                .build()
                .unwrap()
        };
        for batch in build(false).iter().unwrap() {
            assert_eq!(batch.unwrap().1.as_slice(), [1, 1]);
        }
        for batch in build(true).iter().unwrap() {
            let error = batch.unwrap_err();
            assert!(matches!(error, Error::OpenFailed { .. }), "{error:?}");
            assert!(error.to_string().contains("the key does not fit"), "{error}");
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Bulk {
    forgets: bool,
}

impl Dataset for Bulk {
    type Sample = BTreeMap<String, u64>;

    fn len(&self) -> usize {
        10
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<Self::Sample>> {
        let kept = indices.len() - usize::from(self.forgets);
        Ok(indices[..kept]
            .iter()
            .map(|&index| BTreeMap::from([("index".to_owned(), index as u64)]))
            .collect())
    }
}

// PyTorch: D02
#[test]
fn get_many_is_used_where_there_is_one_and_its_count_is_checked() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let build = |forgets| {
            DataLoader::builder(Bulk { forgets }).batch_size(4).num_workers(workers).build().unwrap()
        };
        let seen: Vec<u64> = build(false)
            .iter()
            .unwrap()
            .flat_map(|batch| batch.unwrap()["index"].as_slice().to_vec())
            .collect();
        assert!(seen.into_iter().eq(0..10));
        let error = build(true).iter().unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("asked for 4 samples and returned 3"), "{error}");
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Unencodable(#[serde(serialize_with = "refuse")] u8);

fn refuse<S: serde::Serializer>(_value: &u8, _serializer: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("not for sale"))
}

// PyTorch: X18, N04
#[test]
fn a_batch_that_cannot_be_encoded_fails_alone() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 4 }).batch_size(2).num_workers(1);
    let loader = builder.collate(|_| Ok(Unencodable(1))).build().unwrap();
    for batch in loader.iter().unwrap() {
        let error = batch.unwrap_err();
        assert!(matches!(error, Error::SendFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("not for sale"), "{error}");
    }
}

#[test]
fn a_collation_that_fails_or_panics_is_told() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = || DataLoader::builder(Noise { count: 4 }).batch_size(2).num_workers(workers);
        let failing = builder()
            .collate(|samples| -> anyhow::Result<u8> { anyhow::bail!("{} is too many", samples.len()) });
        let error = failing.build().unwrap().iter().unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::CollateFailed { index: None, .. }), "{error:?}");
        assert!(error.to_string().contains("2 is too many"), "{error}");
        let panicking =
            builder().collate(|samples| -> anyhow::Result<u8> { panic!("{} scare me", samples.len()) });
        let error = panicking.build().unwrap().iter().unwrap().next().unwrap().unwrap_err();
        assert!(
            error.to_string().contains("collation panicked") && error.to_string().contains("2 scare me"),
            "{error}"
        );
    }
}

#[test]
fn what_workers_print_does_not_disturb_the_protocol() {
    let _watchdog = Watchdog::start();
    let (count, at, fault) = (6, 2, Fault::Print);
    let loader = DataLoader::builder(Faulty { count, at, fault }).num_workers(2).build().unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 6);
}

// PyTorch: P-20, X12, U23
#[test]
fn a_timeout_names_who_is_stuck_and_loses_nothing() {
    let _watchdog = Watchdog::start();
    let dataset = loader_tests::datasets::Slow { count: 4, delay: Duration::from_millis(400) };
    let loader =
        DataLoader::builder(dataset).num_workers(1).timeout(Duration::from_millis(150)).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let error = batches.next().unwrap().unwrap_err();
    let Error::TimedOut { waiting_for, .. } = &error else { panic!("{error:?}") };
    assert_eq!((waiting_for.worker, waiting_for.index), (0, 0));
    assert_eq!(waiting_for.pid, batches.worker_pids()[0]);
    assert!(error.to_string().contains(", fetching sample 0 of batch 0"), "{error}");
    let good: Vec<u64> = batches.filter_map(Result::ok).map(|batch| batch.as_slice()[0]).collect();
    assert_eq!(good, [0, 1, 2, 3]);
}

// PyTorch: X17
#[test]
fn holding_every_slot_is_an_error_that_says_so_and_dropping_one_helps() {
    let _watchdog = Watchdog::start();
    let dataset = loader_tests::datasets::Large { count: 100, bytes: 1000 };
    let builder = DataLoader::builder(dataset).num_workers(1).prefetch_factor(1);
    let loader = builder.shared_memory_limit(4 * 64 * 1024).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut held = Vec::new();
    let error = loop {
        match batches.next().unwrap() {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::SharedMemoryExhausted { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("{} batches are held", held.len())), "{error}");
    held.clear();
    assert_eq!(batches.filter(Result::is_ok).count(), 100 - 4, "nothing was lost");
}

// PyTorch: X17, U02
#[test]
fn a_batch_larger_than_the_limit_fails_and_the_others_do_not() {
    let _watchdog = Watchdog::start();
    let dataset = loader_tests::datasets::Large { count: 4, bytes: 1 << 20 };
    let loader = DataLoader::builder(dataset).num_workers(1).shared_memory_limit(1 << 19).build().unwrap();
    for batch in loader.iter().unwrap() {
        let error = batch.unwrap_err();
        assert!(error.to_string().contains("shared memory limit of 524288 bytes"), "{error}");
    }
}

// PyTorch: N15
#[test]
fn a_limit_with_room_for_few_batches_slows_down_and_loses_nothing() {
    let _watchdog = Watchdog::start();
    for room in [1, 2, 3] {
        let dataset = loader_tests::datasets::Large { count: 40, bytes: 1 << 20 };
        let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(3);
        let loader = builder.shared_memory_limit(room * (1 << 20) + (1 << 19)).build().unwrap();
        let first_bytes = loader.iter().unwrap().map(|batch| batch.unwrap().as_slice()[0]);
        assert!(first_bytes.eq(0..40), "room for {room}");
    }
}

#[test]
fn a_tensor_that_a_worker_keeps_is_never_written_again() {
    use std::sync::Mutex;
    static KEPT: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 40 }).batch_size(2).num_workers(1);
    let loader = builder.collate(|samples| {
        let mut kept = KEPT.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        for (number, tensor) in kept.iter().enumerate() {
            ensure!(
                tensor.as_slice() == [2 * number as u64, 2 * number as u64 + 1],
                "tensor {number} changed"
            );
        }
        let numbers: Vec<u64> = samples.iter().map(|sample| sample.0).collect();
        let tensor = Tensor::from_vec(numbers, [2])?;
        kept.push(tensor.clone());
        Ok(tensor)
    });
    let batches = loader.build().unwrap().iter().unwrap();
    assert!(batches.flat_map(|batch| batch.unwrap().as_slice().to_vec()).eq(0..40));
}

#[test]
fn a_tensor_that_a_worker_keeps_and_changes_is_a_copy() {
    use std::sync::Mutex;
    static KEPT: Mutex<Vec<Tensor<u64>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 20 }).batch_size(1).num_workers(1);
    let loader = builder.collate(|samples| {
        let mut kept = KEPT.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        for sent in kept.iter_mut() {
            sent.as_mut_slice()?.fill(0);
        }
        let mut tensor = Tensor::from_vec(vec![samples[0].0], [1])?;
        tensor.as_mut_slice()?[0] += 1;
        kept.push(tensor.clone());
        Ok(tensor)
    });
    // The program holds all batches while the worker changes what it kept of them.
    let batches: Vec<Tensor<u64>> = loader.build().unwrap().iter().unwrap().map(Result::unwrap).collect();
    assert!(batches.iter().flat_map(Tensor::as_slice).copied().eq(1..21));
}

#[test]
fn a_tensor_kept_from_a_batch_that_was_refused_costs_no_worker() {
    use std::sync::Mutex;
    static KEPT: Mutex<Vec<Tensor<u8>>> = Mutex::new(Vec::new());
    let _watchdog = Watchdog::start();
    let dataset = loader_tests::datasets::Large { count: 6, bytes: 8 };
    let loader = DataLoader::builder(dataset).num_workers(1).shared_memory_limit(1 << 19).collate(|_| {
        let small = Tensor::<u8>::zeros([8])?;
        KEPT.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(small.clone());
        Ok((small, Tensor::<u8>::zeros([1 << 20])?))
    });
    let batches = loader.build().unwrap().iter().unwrap();
    let errors: Vec<_> = batches.map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), 6);
    assert!(errors.iter().all(|error| matches!(error, Error::SendFailed { .. })), "{errors:?}");
}

#[test]
fn indices_that_can_never_fit_fail_their_batch_only() {
    let _watchdog = Watchdog::start();
    let builder =
        DataLoader::builder(Noise { count: 20_000 }).batch_size(18_000).shuffle(true).num_workers(1);
    let batches = builder.shared_memory_limit(128 * 1024).build().unwrap().iter().unwrap();
    let outcomes: Vec<String> =
        batches.map(|batch| batch.map_or_else(|error| error.to_string(), |_| String::new())).collect();
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    assert!(outcomes[0].contains("shared_memory_limit is 131072"), "{}", outcomes[0]);
    assert_eq!(outcomes[1], "", "the second batch is a small one");
}

#[test]
fn a_timeout_beyond_all_time_is_none() {
    let _watchdog = Watchdog::start();
    let builder =
        DataLoader::builder(Noise { count: 4 }).num_workers(1).timeout(Duration::from_secs(u64::MAX / 2));
    assert_eq!(builder.build().unwrap().iter().unwrap().filter(Result::is_ok).count(), 4);
}

// PyTorch: X24, N06
#[test]
fn a_sampler_that_panics_ends_the_epoch_at_its_own_place() {
    let _watchdog = Watchdog::start();
    #[derive(Debug)]
    struct PanicsAt5;
    impl Sampler for PanicsAt5 {
        fn len(&self) -> usize {
            10
        }

        fn indices(&self, _epoch: loader_core::sampler::Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
            Box::new((0..10).inspect(|&index| assert_ne!(index, 5, "the sampler panics")))
        }
    }
    for workers in [0, 1] {
        let builder = DataLoader::builder(Noise { count: 10 }).num_workers(workers);
        let loader = builder.sampler(PanicsAt5).build().unwrap();
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(5).filter(Result::is_ok).count(), 5);
        let error = batches.next().unwrap().unwrap_err();
        let Error::SamplerPanicked { batch: 5, message } = &error else { panic!("{error:?}") };
        assert!(message.contains("the sampler panics"), "{message}");
        assert!(batches.next().is_none(), "nobody knows what it would have said next");
    }
}

#[test]
fn a_sampler_that_panics_at_once_is_an_error_of_the_first_batch() {
    let _watchdog = Watchdog::start();
    #[derive(Debug)]
    struct Panics;
    impl Sampler for Panics {
        fn len(&self) -> usize {
            10
        }

        fn indices(&self, _epoch: loader_core::sampler::Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
            panic!("the sampler has no order")
        }
    }
    for workers in [0, 1] {
        let builder = DataLoader::builder(Noise { count: 10 }).num_workers(workers).sampler(Panics);
        let mut batches = builder.build().unwrap().iter().unwrap();
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::SamplerPanicked { batch: 0, .. }), "{error:?}");
        assert!(batches.next().is_none());
    }
}

#[test]
fn a_long_wait_is_warned_of_once_with_worker_pid_and_sample() {
    let _watchdog = Watchdog::start();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&warnings);
    let dataset = SlowFirst { count: 3, delay: Duration::from_millis(600), numbers: 1 };
    let builder = DataLoader::builder(dataset).num_workers(1).warn_after(Duration::from_millis(100));
    let loader =
        builder.on_warning(move |warning| noted.lock().unwrap().push(warning.clone())).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pid = batches.worker_pids()[0];
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 3, "the wait goes on");
    let warnings = warnings.lock().unwrap();
    let [Warning::LongWait { waiting_for, .. }] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((waiting_for.worker, waiting_for.pid, waiting_for.batch, waiting_for.index), (0, pid, 0, 0));
    let text = warnings[0].to_string();
    assert!(text.starts_with("no batch for 100ms: waiting for worker 0 (pid "), "{text}");
    assert!(text.contains("fetching sample 0 of batch 0 for 0."), "{text}");
}
