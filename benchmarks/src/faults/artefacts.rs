//! Files that the loader has written for a later run, and what becomes of them when they are damaged.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use loader_core::{
    BatchDigest, State,
    prelude::*,
    rand::{Rng, RngExt, SeedableRng, rngs::ChaCha8Rng},
};
use loader_data::{IndexPlace, PackOptions, PackPlan, TarShards, TextLinesOptions, check_packed};
use serde::{Deserialize, Serialize};

use crate::{
    host::{BATCHES, Report},
    list::Artefact,
};

/// Folder of the files, in the folder of the try.
pub(crate) const FILES: &str = "files";
/// Number of times that each try damages a file, from the undamaged files each time.
pub(crate) const DAMAGES: usize = 10;

const SAMPLES: usize = 120;
const WORKERS: usize = 2;

/// A batch, as a hash of its content; or its error.
type Batches = Vec<anyhow::Result<u64>>;

/// A dataset whose samples are worth caching.
#[derive(Debug, Serialize, Deserialize)]
struct Rows;

impl Dataset for Rows {
    type Sample = Tensor<u64>;

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Tensor<u64>> {
        let values = (0..16).map(|column| (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ column);
        Ok(Tensor::from_vec(values.collect(), [16])?)
    }
}

/// Damages the files of an artefact [`DAMAGES`] times. Notes in the report whether every batch was right or an error.
pub(crate) fn damage(artefact: Artefact, number: usize, report: &mut Report) -> anyhow::Result<()> {
    let folder = env::temp_dir().join(FILES);
    make(artefact, &folder)?;
    let expected: Vec<u64> = read(artefact, &folder)?.into_iter().collect::<Result<_, _>>()?;
    ensure!(expected.len() > 10, "the artefact has few batches");
    let damaged = files(&folder.join("stored"))?;
    let whole = damaged.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
    for damage in 0..DAMAGES {
        let mut random = ChaCha8Rng::seed_from_u64((number * DAMAGES + damage) as u64);
        let chosen = random.random_range(0..damaged.len());
        fs::write(&damaged[chosen], changed(&whole[chosen], &mut random))?;
        match read(artefact, &folder) {
            Err(error) => _ = report.error.get_or_insert(error.to_string()),
            Ok(batches) => {
                let error = batches.iter().find_map(|batch| batch.as_ref().err());
                if let Some(error) = error {
                    report.error.get_or_insert(error.to_string());
                }
                // An error takes the place of a batch.
                let is_other = |(batch, right): (&anyhow::Result<u64>, &u64)| {
                    batch.as_ref().is_ok_and(|hash| hash != right)
                };
                report.wrong |= batches.iter().zip(&expected).any(is_other);
                report.wrong |= error.is_none() && batches.len() != expected.len();
            }
        }
        // What was read may have replaced other files too.
        for (path, content) in damaged.iter().zip(&whole) {
            fs::write(path, content)?;
        }
    }
    report.right = BATCHES;
    Ok(())
}

/// Returns other bytes: some are changed, or the end is cut off, or there are more.
fn changed(bytes: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match random.random_range(0..4) {
        0 => bytes.truncate(random.random_range(0..bytes.len())),
        1 => {
            let mut more = vec![0; random.random_range(1..5000)];
            random.fill_bytes(&mut more);
            bytes.extend(more);
        }
        _ => {
            for _ in 0..random.random_range(1..9) {
                let place = random.random_range(0..bytes.len());
                bytes[place] ^= random.random_range(1..=u8::MAX);
            }
        }
    }
    bytes
}

/// Makes the artefact in the folder `stored`, from what is beside it.
fn make(artefact: Artefact, folder: &Path) -> anyhow::Result<()> {
    let stored = folder.join("stored");
    fs::create_dir_all(&stored)?;
    let source = folder.join("source");
    match artefact {
        Artefact::Cache => drop(read(artefact, folder)?),
        Artefact::Index => {
            let lines: Vec<_> = (0..2000).map(|line| format!("line {line}")).collect();
            fs::write(folder.join("lines.txt"), lines.join("\n"))?;
            read(artefact, folder)?;
        }
        Artefact::State => {
            let loader = numbers()?;
            let mut batches = loader.iter()?;
            batches.by_ref().take(10).try_for_each(|batch| batch.map(drop))?;
            fs::write(stored.join("state.json"), serde_json::to_string(&batches.state())?)?;
        }
        Artefact::Packed => {
            fs::create_dir_all(&source)?;
            for sample in 0..SAMPLES {
                fs::write(source.join(format!("{sample:03}.txt")), format!("sample {sample}").repeat(20))?;
            }
            let options = PackOptions { shard_bytes: 40_000, ..PackOptions::default() };
            PackPlan::new(&source, &options)?.write(&stored, |_| true)?;
        }
    }
    Ok(())
}

/// Reads the batches of the dataset, with the artefact.
fn read(artefact: Artefact, folder: &Path) -> anyhow::Result<Batches> {
    let stored = folder.join("stored");
    match artefact {
        Artefact::Cache => {
            let cached = Rows.cached(stored, "1")?;
            let loader = DataLoader::builder(cached).batch_size(4).num_workers(WORKERS).build()?;
            Ok(hashes(loader.iter()?))
        }
        Artefact::Index => {
            let lines = TextLinesOptions::new(folder.join("lines.txt")).index(IndexPlace::Folder(stored));
            let loader = DataLoader::builder(lines.open()?).batch_size(50).num_workers(WORKERS).build()?;
            Ok(hashes(loader.iter()?))
        }
        Artefact::State => {
            let state: State = serde_json::from_slice(&fs::read(stored.join("state.json"))?)?;
            let loader = numbers()?;
            Ok(hashes(loader.resume(&state)?))
        }
        Artefact::Packed => {
            // The archives have no checksums, so a reader of files that may be damaged checks them first.
            let (_, problems) = check_packed(&stored)?;
            ensure!(problems.is_empty(), "{}", problems.join("; "));
            let shards = TarShards::open(&stored)?;
            let loader = DataLoader::stream(shards).shards(2).batch_size(4).num_workers(WORKERS).build()?;
            Ok(hashes(loader.iter()?))
        }
    }
}

/// The loader whose state is damaged.
fn numbers() -> anyhow::Result<DataLoader<Tensor<u64>>> {
    let loader = DataLoader::builder(Rows).batch_size(4).shuffle(true).seed(3).digest(true);
    Ok(loader.num_workers(WORKERS).build()?)
}

fn hashes<B: Serialize>(batches: impl Iterator<Item = Result<B, loader_core::Error>>) -> Batches {
    let hash = |batch: B| {
        let mut digest = BatchDigest::new();
        digest.add(&[], &batch);
        digest.content()
    };
    batches.map(|batch| Ok(hash(batch?))).collect()
}

/// Opens the cache in the folder of the try, which belongs to another user.
pub(crate) fn open_cache() -> anyhow::Result<()> {
    drop(Rows.cached(env::temp_dir().join(FILES), "1")?);
    Ok(())
}

/// Returns the files in a folder, in the order of their names.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    files.sort();
    Ok(files)
}
