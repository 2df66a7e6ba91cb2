//! Bulk inference: embeds every image of a folder, skips the files that cannot be read, and lists them.
//!
//!     cargo run --release --package example-embeddings -- loader-data/photos
//!
//! Inference does not need an order, so batches come as they arrive (`in_order(false)`): one slow image holds up
//! no other batch. A thread computes the embeddings while the main thread writes the results (`convert_ahead`).
//! The model is a random projection of the image to 64 numbers, which stands for a real network. The program makes
//! links to the class folders, and a truncated photograph beside them, so that there is a bad file.

use std::{
    collections::BTreeMap,
    env, fs, mem,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use anyhow::Context;
use loader::{
    Warning,
    data::{ImageFolder, Transform},
    prelude::*,
    rand::{RngExt, SeedableRng, rngs::ChaCha8Rng},
};

const SIDE: usize = 32;
const PIXELS: usize = 3 * SIDE * SIDE;
const EMBEDDING: usize = 64;

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let folder = env::args_os().nth(1).context("usage: example-embeddings FOLDER")?;
    let linked = linked_with_a_bad_file(Path::new(&folder))?;
    let images = ImageFolder::open(linked.path())?.transform(Transform::standard_eval(SIDE as u32))?;
    let paths: Vec<PathBuf> = (0..images.len()).filter_map(|index| images.path(index)).collect();

    let bad = Arc::new(Mutex::new(Vec::new()));
    let skipped = Arc::clone(&bad);
    let loader = DataLoader::builder(images)
        .batch_size(4)
        .num_workers(2)
        .in_order(false)
        .on_bad_sample(OnBadSample::Skip)
        .max_bad_samples(100)
        .on_warning(move |warning| {
            // Each skipped file is a warning.
            if let Warning::BadSample(sample) = warning
                && let Ok(mut skipped) = skipped.lock()
            {
                skipped.push(sample.clone());
            }
        })
        .build()?;
    let model = Model::random(7);
    // A model on a GPU would be called here, too: the closure owns the batch until the copy is done.
    let mut embedded = loader
        .iter()?
        .convert_ahead(2, move |(pixels, _label): (Tensor<f32>, Tensor<u32>)| Ok(model.embed(&pixels)))?;

    let mut embeddings = BTreeMap::new();
    while let Some(batch) = embedded.next() {
        let info = embedded.last_batch().context("the loader has no BatchInfo of this batch")?.clone();
        // The indices say which files the rows belong to: batches arrive in any order.
        for (index, embedding) in info.indices.iter().zip(batch?) {
            embeddings.insert(paths[*index].clone(), embedding);
        }
    }

    for (path, embedding) in &embeddings {
        let (other, similarity) = most_similar(path, embedding, &embeddings)
            .context("fewer than two images were embedded; use a larger folder")?;
        println!("{}: most like {} ({similarity:.2})", name(path), name(other));
    }
    let bad = mem::take(&mut *bad.lock().expect("the function of `on_warning` has not panicked"));
    for sample in &bad {
        println!("skipped {}: {}", name(&paths[sample.index]), sample.reason);
    }
    if let Some(report) = embedded.report() {
        println!("{report}");
    }
    anyhow::ensure!(embeddings.len() + bad.len() == paths.len(), "a file is neither embedded nor listed");
    anyhow::ensure!(!bad.is_empty(), "the truncated file is not listed");
    Ok(())
}

/// A random projection to [`EMBEDDING`] numbers of length 1.
struct Model {
    weights: Vec<[f32; EMBEDDING]>,
}

impl Model {
    fn random(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self { weights: (0..PIXELS).map(|_| std::array::from_fn(|_| rng.random_range(-1.0..1.0))).collect() }
    }

    /// Returns the embedding of each image of a batch of shape `[B, 3, SIDE, SIDE]`.
    fn embed(&self, pixels: &Tensor<f32>) -> Vec<[f32; EMBEDDING]> {
        (0..pixels.len()).map(|image| self.embed_one(pixels.row(image))).collect()
    }

    fn embed_one(&self, pixels: &[f32]) -> [f32; EMBEDDING] {
        let mut embedding = [0.0; EMBEDDING];
        for (pixel, weights) in pixels.iter().zip(&self.weights) {
            embedding.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += pixel * weight);
        }
        let length = embedding.iter().map(|value| value * value).sum::<f32>().sqrt();
        embedding.map(|value| value / length)
    }
}

fn most_similar<'a>(
    path: &Path,
    embedding: &[f32; EMBEDDING],
    embeddings: &'a BTreeMap<PathBuf, [f32; EMBEDDING]>,
) -> Option<(&'a Path, f32)> {
    let similarity = |other: &[f32; EMBEDDING]| embedding.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    let others = embeddings.iter().filter(|(other, _)| *other != path);
    others
        .map(|(other, values)| (other.as_path(), similarity(values)))
        .max_by(|(_, left), (_, right)| left.total_cmp(right))
}

/// Links to the class folders, and adds a class with the first half of a photograph.
fn linked_with_a_bad_file(folder: &Path) -> anyhow::Result<tempfile::TempDir> {
    let linked = tempfile::tempdir()?;
    let mut photograph = None;
    let classes = fs::read_dir(folder);
    for class in classes.with_context(|| format!("cannot list the folder {}", folder.display()))? {
        let class = class?;
        if !class.path().is_dir() {
            continue;
        }
        symlink(fs::canonicalize(class.path())?, linked.path().join(class.file_name()))?;
        if photograph.is_none() {
            photograph = fs::read_dir(class.path())?.next().transpose()?;
        }
    }
    let bytes = fs::read(photograph.context("the folder has no photographs")?.path())?;
    let bad = linked.path().join("truncated");
    fs::create_dir(&bad)?;
    fs::write(bad.join("truncated.jpg"), &bytes[..bytes.len() / 2])?;
    Ok(linked)
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
