//! Cached datasets: samples are computed once and then read from the cache, by any worker of any program,
//! also after workers have died.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use loader_core::{Cached, Error, WorkerInfo, prelude::*};
use loader_tests::{Watchdog, digest, processes, skipped};
use nix::sys::{
    resource::{Resource, setrlimit},
    signal::Signal,
};
use rand::Rng;
use serde::{Deserialize, Serialize};

const SAMPLES: usize = 120;

/// Sample `i` is `i`, and a text whose length depends on `i`. Each computation of a sample adds a line to
/// `log`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Expensive {
    log: PathBuf,
}

impl Dataset for Expensive {
    type Sample = (u64, String);

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.log)?
            .write_all(format!("{index}\n").as_bytes())?;
        thread::sleep(Duration::from_millis(2));
        Ok((index as u64, index.to_string().repeat(index * 37 % 1000)))
    }
}

impl Expensive {
    /// Returns the number of computations so far.
    fn computed(&self) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().lines().count()
    }
}

fn expensive(folder: &Path) -> Expensive {
    Expensive { log: folder.join("log") }
}

fn cached(folder: &Path) -> Cached<Expensive> {
    expensive(folder).cached(folder.join("cache"), "1").unwrap()
}

type Batch = (Tensor<u64>, Vec<String>, Tensor<u64>);

/// Builds a loader that adds a random number to each sample of `dataset`, after the cache.
fn loader(dataset: impl Dataset<Sample = (u64, String)>, workers: usize) -> DataLoader<Batch> {
    let dataset = dataset.map(|(number, text), cx| Ok((number, text, cx.rng().next_u64())));
    DataLoader::builder(dataset).batch_size(8).shuffle(true).seed(3).num_workers(workers).build().unwrap()
}

/// Returns the digests of two epochs.
fn epochs(loader: &DataLoader<Batch>) -> [(u64, u64); 2] {
    [0, 1].map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap())
}

fn uncached() -> [(u64, u64); 2] {
    let folder = tempfile::tempdir().unwrap();
    epochs(&loader(expensive(folder.path()), 0))
}

#[test]
fn two_epochs_compute_each_sample_once() {
    let _watchdog = Watchdog::start();
    let expected = uncached();
    // Each process of an epoch may compute one more sample, to compare it with the cache.
    let processes = |workers: usize| 2 * workers.max(1);
    for workers in [0, 1, 3] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(epochs(&loader(cached(folder.path()), workers)), expected, "{workers} workers");
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        let mut computed: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
        assert!(computed.len() <= SAMPLES + processes(workers), "{workers} workers: {computed:?}");
        let before = computed.len();
        computed.sort_unstable();
        computed.dedup();
        assert!(computed.into_iter().eq(0..SAMPLES), "{workers} workers");
        let other = loader(cached(folder.path()), 3 - workers);
        assert_eq!(epochs(&other), expected, "read by a program with another number of workers");
        let compared = expensive(folder.path()).computed() - before;
        assert!((1..=processes(3 - workers)).contains(&compared), "{workers} workers: {compared}");
    }
}

/// Kills a worker before each batch of the first epoch, at a random moment.
#[test]
fn killed_workers_leave_each_sample_complete_or_absent() {
    let _watchdog = Watchdog::start();
    let (expected, folder) = (uncached(), tempfile::tempdir().unwrap());
    let loader = loader(cached(folder.path()), 3);
    let mut batches = loader.epoch(0).unwrap();
    let (mut digest_of_first, mut random) = (BatchDigest::new(), SampleContext::new(1));
    loop {
        let pids = batches.worker_pids();
        thread::sleep(Duration::from_micros(random.rng().next_u64() % 6000));
        processes::try_signal(pids[random.rng().next_u64() as usize % pids.len()], Signal::SIGKILL);
        let Some(batch) = batches.next() else { break };
        digest_of_first.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
    }
    assert!(batches.report().restarts > 3, "few workers were replaced: {:?}", batches.report());
    assert_eq!((digest_of_first.order(), digest_of_first.content()), expected[0]);
    let computed = expensive(folder.path()).computed();
    assert!((SAMPLES..2 * SAMPLES).contains(&computed), "{computed} computations");
    assert_eq!(digest(loader.epoch(1).unwrap()).unwrap(), expected[1]);
    let compared = expensive(folder.path()).computed() - computed;
    assert!((1..=3).contains(&compared), "each worker of the second epoch compares a sample: {compared}");
}

/// Returns a command that runs `test` in another process with `folder`, started by `wrapper` if that is not
/// empty.
fn program(test: &str, folder: &Path, wrapper: &[&str]) -> Command {
    let this = std::env::current_exe().unwrap();
    let words = wrapper.iter().map(|word| word.as_ref()).chain([this.as_os_str()]);
    let words: Vec<_> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args([&format!("cached::{test}"), "--exact", "--nocapture"]);
    command.env("CACHED_TEST_FOLDER", folder).stdout(Stdio::null());
    command
}

/// Returns the folder, if `program` started this process.
fn folder_of_program() -> Option<PathBuf> {
    std::env::var_os("CACHED_TEST_FOLDER").map(PathBuf::from)
}

#[test]
fn two_programs_fill_one_cache() {
    let _watchdog = Watchdog::start();
    if let Some(folder) = folder_of_program() {
        assert_eq!(epochs(&loader(cached(&folder), 2)), uncached());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let start = || program("two_programs_fill_one_cache", folder.path(), &[]).spawn().unwrap();
    let mut programs = [start(), start()];
    assert!(programs.iter_mut().all(|program| program.wait().unwrap().success()));
    let computed = expensive(folder.path()).computed();
    // Each of two workers in two epochs may compare one sample with the cache.
    let compared = 4;
    assert!((SAMPLES..=2 * (SAMPLES + compared)).contains(&computed), "{computed} computations");
    assert_eq!(epochs(&loader(cached(folder.path()), 2)), uncached());
    assert!(expensive(folder.path()).computed() <= computed + compared);
}

#[test]
fn a_random_stage_before_the_cache_is_refused() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let random = expensive(folder.path()).map(|(number, text), cx| Ok((number ^ cx.rng().next_u64(), text)));
    let dataset = random.cached(folder.path().join("cache"), "1").unwrap();
    let loader = DataLoader::builder(dataset).batch_size(4).num_workers(1).build().unwrap();
    let Err(Error::DatasetFailed { index: Some(0), failure, .. }) = loader.iter().unwrap().next().unwrap()
    else {
        panic!("the batch must fail")
    };
    assert!(failure.chain[0].starts_with("sample 0 cannot be cached in "), "{failure:?}");
}

fn limit_files(_worker: &WorkerInfo) -> anyhow::Result<()> {
    Ok(setrlimit(Resource::RLIMIT_FSIZE, 20_000, 20_000)?)
}

/// Without the loader's protection, a write beyond the limit would kill the worker with SIGXFSZ.
#[test]
fn a_limit_on_the_size_of_files_is_bypassed() {
    let _watchdog = Watchdog::start();
    let (expected, folder) = (uncached(), tempfile::tempdir().unwrap());
    let dataset = cached(folder.path()).map(|(number, text), cx| Ok((number, text, cx.rng().next_u64())));
    let builder = DataLoader::builder(dataset).batch_size(8).shuffle(true).seed(3).num_workers(2);
    let loader = builder.worker_init(limit_files).build().unwrap();
    for (epoch, expected) in expected.into_iter().enumerate() {
        let mut batches = loader.epoch(epoch as u64).unwrap();
        let mut digest = BatchDigest::new();
        while let Some(batch) = batches.next() {
            digest.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
        }
        assert_eq!((digest.order(), digest.content()), expected);
        assert_eq!(batches.report().restarts, 0);
    }
    let len = fs::metadata(folder.path().join("cache/samples")).unwrap().len();
    assert!((10_000..=20_000).contains(&len), "{len} bytes");
    let computed = expensive(folder.path()).computed();
    assert!((SAMPLES + 1..2 * SAMPLES).contains(&computed), "{computed} computations");
}

#[test]
fn a_full_disk_is_bypassed_with_one_warning() {
    let _watchdog = Watchdog::start();
    if let Some(folder) = folder_of_program() {
        // The log is on another disk.
        let log = std::env::temp_dir().join(format!("loader-cached-{}", std::process::id()));
        let dataset = Expensive { log: log.clone() }.cached(folder.join("disk/cache"), "1").unwrap();
        assert_eq!(epochs(&loader(dataset, 1)), uncached());
        let computed = Expensive { log: log.clone() }.computed();
        fs::remove_file(log).unwrap();
        assert!((SAMPLES + 1..2 * SAMPLES).contains(&computed), "{computed} computations");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // A disk of 64 KiB, in a namespace of its own.
    let mount = format!("mount -t tmpfs -o size=64k tmpfs {} && exec \"$@\"", disk.display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &mount, "sh"];
    let possible = Command::new("unshare").args(&wrapper[1..]).arg("true").stderr(Stdio::null()).status();
    if !possible.is_ok_and(|status| status.success()) {
        skipped("this user may not mount");
        return;
    }
    let output =
        program("a_full_disk_is_bypassed_with_one_warning", folder.path(), &wrapper).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // Each of the two epochs has its own worker, which warns once.
    assert_eq!(text.matches("is not filled: a sample cannot be written").count(), 2, "{text}");
}
