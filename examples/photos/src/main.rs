//! Image classification with burn: photographs from a folder, a checkpoint in the middle of an epoch, and the same
//! losses to the last bit after the training has been interrupted.
//!
//!     cargo run --release --package example-photos -- [FOLDER]
//!
//! FOLDER has one sub-folder of images per class; the default is `loader-data/photos`. Worker processes decode,
//! crop, flip and normalise the images, and burn trains a small network with them. The program trains twice:
//!
//! 1. From beginning to end, with 1 worker.
//! 2. With 1 worker, until it stops in the middle of an epoch, some batches after a checkpoint. A new loader with 2
//!    workers continues from the files of the checkpoint, and one of its workers is killed.
//!
//! It fails unless both have the same bits in every loss and every weight. This needs two things. The loader gives
//! the same batches, because the augmentation of a sample depends on the seed, the epoch and the sample alone, and
//! `Iter::state` is the exact position of the program. And burn computes the same numbers from them: those of its
//! backend `flex` do not depend on the number of threads here. (It adds up tensors of 4 Mi elements or more in an
//! order that depends on its threads. Set RAYON_NUM_THREADS=1 if you train with such tensors.)

mod model;

use std::{
    env, fs,
    ops::ControlFlow::{self, Break, Continue},
    path::Path,
};

use anyhow::Context;
use burn::{
    data::dataloader::DataLoader as _,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    prelude::*,
};
use loader::{
    data::{ImageFolder, Transform},
    prelude::*,
};
use loader_burn::BurnLoader;
use rustix::process::{Pid, Signal};

use crate::model::{Classifier, bits_of_weights};

const SIDE: u32 = 64;
/// The dataset has each photograph this often, each time with another crop.
const VIEWS: usize = 32;
const BATCH_SIZE: usize = 16;
const EPOCHS: u64 = 8;
const LEARNING_RATE: f64 = 2e-3;
const SEED: u64 = 7;

/// The second training saves a checkpoint after this many steps. With 9 photographs an epoch has 18.
const CHECKPOINT_AT: usize = 47;
/// It stops after this many steps, so that the steps between the two are done again.
const STOP_AT: usize = 50;
const KILL_AT: usize = 60;

/// A sample. The derive makes `PhotoBatch` of the loader's tensors and `PhotoBurn` of burn's, and the method
/// `PhotoBatch::to_burn`.
#[derive(Sample)]
#[sample(burn)]
struct Photo {
    #[sample(rank = 4)] // [batch, channel, row, column]; the type does not tell it
    pixels: loader::Tensor<f32>,
    label: i32, // as burn's `argmax` on this backend: burn does not compare integers of different types
}

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let path = env::args_os().nth(1).unwrap_or_else(|| "loader-data/photos".into());
    let folder = ImageFolder::open(path)?;
    let device = Device::flex().autodiff();

    println!("1. undisturbed, 1 worker");
    let mut undisturbed = Training::new(&folder, &device);
    train(&mut undisturbed, &train_loader(&folder, 1)?, None, |_, _| Ok(Continue(())))?;

    println!("2. 1 worker, stopped after {STOP_AT} steps, with a checkpoint after {CHECKPOINT_AT}");
    let temporary = tempfile::tempdir()?;
    let checkpoint = temporary.path().join("checkpoint");
    let mut stopped = Training::new(&folder, &device);
    train(&mut stopped, &train_loader(&folder, 1)?, None, |training, batches| match training.losses.len() {
        CHECKPOINT_AT => {
            training.save(&batches.state(), &checkpoint)?;
            Ok(Continue(()))
        }
        STOP_AT => Ok(Break(())),
        _ => Ok(Continue(())),
    })?;
    stopped.losses.truncate(CHECKPOINT_AT); // the checkpoint knows nothing of the later steps

    println!("   continued from the files, 2 workers");
    let (mut resumed, state) = Training::load(&checkpoint, &folder, &device)?;
    let loader = train_loader(&folder, 2)?;
    train(&mut resumed, &loader, Some(&state), |training, batches| {
        if CHECKPOINT_AT + training.losses.len() == KILL_AT {
            kill(batches.worker_pids()[0])?;
        }
        Ok(Continue(()))
    })?;

    let losses = [stopped.losses, resumed.losses].concat();
    let differing =
        losses.iter().zip(&undisturbed.losses).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let accuracies =
        [accuracy(&undisturbed.model, &folder, &device)?, accuracy(&resumed.model, &folder, &device)?];
    println!(
        "{} losses, {differing} differ; accuracy {:.3} and {:.3}",
        losses.len(),
        accuracies[0],
        accuracies[1]
    );
    anyhow::ensure!(losses.len() == undisturbed.losses.len() && differing == 0, "the losses differ");
    anyhow::ensure!(
        bits_of_weights(&undisturbed.model) == bits_of_weights(&resumed.model),
        "the final weights differ"
    );
    anyhow::ensure!(loader.stats().restarts == 1, "{} workers were replaced", loader.stats().restarts);
    anyhow::ensure!(accuracies[0] > 0.8, "the network has not learned: accuracy {}", accuracies[0]);
    let last = losses[losses.len() - 1];
    println!("same losses and weights to the last bit (last loss {last}); 1 worker was replaced");
    Ok(())
}

/// Makes the loader of the training: each epoch has other crops in another order.
fn train_loader(folder: &ImageFolder, num_workers: usize) -> anyhow::Result<DataLoader<PhotoBatch>> {
    // RandomResizedCrop, a random flip, and normalisation.
    let photos = folder.clone().transform(Transform::standard_train(SIDE))?;
    let views = ConcatDataset::new(vec![photos; VIEWS])?;
    let samples = views.map(|(pixels, label), _cx| Ok(Photo { pixels, label: label.try_into()? }));
    let builder = DataLoader::builder(samples).batch_size(BATCH_SIZE).shuffle(true).seed(SEED);
    Ok(builder.num_workers(num_workers).build()?)
}

/// The part of the training that a checkpoint saves, and the loss of each step.
struct Training {
    device: Device,
    model: Classifier,
    optimizer: ModuleOptimizer,
    losses: Vec<f32>,
}

impl Training {
    fn new(folder: &ImageFolder, device: &Device) -> Self {
        device.seed(SEED); // of the first weights
        let model = Classifier::new(folder.classes().len(), device);
        Self { device: device.clone(), model, optimizer: AdamConfig::new().init(), losses: Vec::new() }
    }

    /// Trains with one batch.
    fn step(&mut self, photos: PhotoBurn) -> anyhow::Result<()> {
        let PhotoBurn { pixels, label } = photos;
        let scores = self.model.forward(pixels);
        let loss = CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, label);
        let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optimizer.step(LEARNING_RATE, self.model.clone(), gradients);
        self.losses.push(loss.try_into_scalar::<f32>()?);
        Ok(())
    }

    /// Saves the model, the optimiser and the position of the loader as files in `folder`. A folder of this name
    /// is always complete, because the files get there under another name.
    fn save(&self, state: &State, folder: &Path) -> anyhow::Result<()> {
        let partial = folder.with_extension("partial");
        fs::create_dir(&partial)?;
        self.model.clone().save_file(partial.join("model"))?;
        self.optimizer.save(partial.join("optimizer"))?;
        fs::write(partial.join("loader.json"), serde_json::to_vec(state)?)?;
        fs::rename(partial, folder)?;
        Ok(())
    }

    /// Reads what [`save`](Self::save) has written.
    fn load(checkpoint: &Path, folder: &ImageFolder, device: &Device) -> anyhow::Result<(Self, State)> {
        let mut training = Self::new(folder, device);
        training.model = training.model.try_load_file(checkpoint.join("model"))?;
        training.optimizer = training.optimizer.load(checkpoint.join("optimizer"))?;
        let state = serde_json::from_slice(&fs::read(checkpoint.join("loader.json"))?)?;
        Ok((training, state))
    }
}

/// Trains until the last epoch, from the position `state` or from the beginning. Calls `after_step` after each
/// step, and stops if it says so.
fn train(
    training: &mut Training,
    loader: &DataLoader<PhotoBatch>,
    state: Option<&State>,
    mut after_step: impl FnMut(&Training, &loader::Iter<PhotoBatch>) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    let mut batches = match state {
        Some(state) => loader.resume(state)?,
        None => loader.iter()?,
    };
    loop {
        let first = training.losses.len();
        while let Some(batch) = batches.next() {
            training.step(batch?.to_burn(&training.device)?)?; // the tensors are over shared memory, not copies
            if after_step(training, &batches)?.is_break() {
                return Ok(());
            }
        }
        let losses = &training.losses[first..];
        let mean = losses.iter().sum::<f32>() / losses.len() as f32;
        println!("   epoch {}: {} steps, mean loss {mean:.3}", batches.epoch(), losses.len());
        if batches.epoch() + 1 == EPOCHS {
            println!("   {}", batches.report());
            return Ok(());
        }
        batches = loader.iter()?; // the next epoch
    }
}

/// Returns the share of the photographs that the network classifies correctly, without augmentation.
///
/// The loader becomes burn's own `DataLoader` here. This is how burn's learner gets its batches, too:
/// `SupervisedTraining::new(artifacts, Arc::new(train), Arc::new(valid)).num_epochs(8).launch(learner)`, where
/// `train` and `valid` are such `BurnLoader`s. The learner cannot resume in the middle of an epoch.
fn accuracy(model: &Classifier, folder: &ImageFolder, device: &Device) -> anyhow::Result<f32> {
    let photos = folder.clone().transform(Transform::standard_eval(SIDE))?;
    let samples = photos.map(|(pixels, label), _cx| Ok(Photo { pixels, label: label.try_into()? }));
    let loader = DataLoader::builder(samples).batch_size(BATCH_SIZE).num_workers(1).build()?;
    let loader = BurnLoader::new(loader, |batch: PhotoBatch, device| batch.to_burn(device)).device(device);

    let (mut correct, mut count) = (0_i64, 0);
    for batch in loader.iter() {
        let PhotoBurn { pixels, label } = batch?;
        count += label.dims()[0];
        let predicted = model.forward(pixels).argmax(1).squeeze_dim::<1>(1);
        correct += predicted.equal(label).int().sum().try_into_scalar::<i64>()?;
    }
    Ok(correct as f32 / count as f32)
}

/// Kills a worker, as the kernel does when memory runs out.
fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid.try_into()?).context("a process id is not 0")?;
    Ok(rustix::process::kill_process(pid, Signal::KILL)?)
}
