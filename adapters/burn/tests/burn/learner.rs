//! Burn's own learner, with batches from worker processes.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use burn_core as burn;
use burn_core::{
    data::dataloader::DataLoader as BurnDataLoader,
    module::{Module, Param},
    tensor::{Device, Tensor as BurnTensor},
};
use burn_optim::{SgdConfig, lr_scheduler::constant::ConstantLr};
use burn_train::{
    ExecutionStrategy, InferenceStep, Learner, LearningResult, MultiDeviceOptim, RegressionOutput,
    SupervisedTraining, TrainOutput, TrainStep, TrainingStrategy,
};
use loader::prelude::*;
use loader_burn::{BurnLoader, ToBurn};
use loader_conformance::watchdog::Watchdog;
use serde::{Deserialize, Serialize};

const ITEMS: usize = 64;
const EPOCHS: usize = 10;

/// Points of the line `y = 2x + 1`, with `x` from 0 to 1. Point `bad` fails.
#[derive(Clone, Serialize, Deserialize)]
struct Line {
    bad: Option<usize>,
}

impl Dataset for Line {
    type Sample = ([f32; 1], [f32; 1]);

    fn len(&self) -> usize {
        ITEMS
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        anyhow::ensure!(self.bad != Some(index), "point {index} is damaged");
        let x = index as f32 / ITEMS as f32;
        Ok(([x], [2.0 * x + 1.0]))
    }
}

type Batch = (Tensor<f32>, Tensor<f32>);

struct Points {
    x: BurnTensor<2>,
    y: BurnTensor<2>,
}

#[derive(Module, Debug)]
struct Linear {
    weight: Param<BurnTensor<2>>,
    bias: Param<BurnTensor<2>>,
}

impl Linear {
    fn forward(&self, points: Points) -> RegressionOutput {
        let output = points.x.matmul(self.weight.val()) + self.bias.val();
        let loss = (output.clone() - points.y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, points.y)
    }
}

impl TrainStep for Linear {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let output = self.forward(points);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Linear {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> RegressionOutput {
        self.forward(points)
    }
}

/// The points of each batch that the training has got, in its order.
type Log = Arc<Mutex<Vec<f32>>>;

fn train_loader(line: Line) -> (Arc<BurnLoader<Batch, Points>>, Log) {
    let log = Log::default();
    let build = move |items: Range<usize>| {
        let part = Subset::new(line.clone(), items)?;
        anyhow::Ok(DataLoader::builder(part).batch_size(8).shuffle(true).num_workers(1).build()?)
    };
    let seen = Arc::clone(&log);
    let convert = move |(x, y): Batch, device: &Device| {
        seen.lock().unwrap().extend_from_slice(x.as_slice());
        anyhow::Ok(Points { x: x.to_burn(device)?, y: y.to_burn(device)? })
    };
    (Arc::new(BurnLoader::splittable(ITEMS, build, convert).unwrap().ahead(2)), log)
}

fn valid_loader() -> Arc<dyn BurnDataLoader<Points>> {
    let loader = DataLoader::builder(Line { bad: None }).batch_size(32).num_workers(1).build().unwrap();
    Arc::new(BurnLoader::new(loader, |(x, y): Batch, device| {
        anyhow::Ok(Points { x: x.to_burn(device)?, y: y.to_burn(device)? })
    }))
}

fn train(loader: Arc<dyn BurnDataLoader<Points>>, strategy: ExecutionStrategy) -> LearningResult<Linear> {
    let folder = tempfile::tempdir().unwrap();
    let device = strategy.main_device().clone();
    let zero = || Param::from_tensor(BurnTensor::zeros([1, 1], &device));
    let model = Linear { weight: zero(), bias: zero() };
    SupervisedTraining::new(folder.path(), loader, valid_loader())
        .with_training_strategy(TrainingStrategy::Default(strategy))
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .launch(Learner::new(model, SgdConfig::new().init(), ConstantLr::new(0.2)))
}

/// Checks that the model has learnt the line, and that each epoch had each point once, in another order.
fn check(result: &LearningResult<Linear>, log: &Log) {
    assert!(result.error.is_none(), "{:?}", result.error);
    let value = |param: &Param<BurnTensor<2>>| param.val().into_scalar::<f32>();
    let (weight, bias) = (value(&result.model.weight), value(&result.model.bias));
    assert!((weight - 2.0).abs() < 0.5 && (bias - 1.0).abs() < 0.3, "y = {weight} x + {bias}");
    let log = log.lock().unwrap();
    let mut epochs: Vec<_> = log.chunks_exact(ITEMS).map(<[f32]>::to_vec).collect();
    assert_eq!((log.len(), epochs.len()), (EPOCHS * ITEMS, EPOCHS));
    assert_ne!(epochs[0], epochs[1]);
    let all: Vec<f32> = (0..ITEMS).map(|index| index as f32 / ITEMS as f32).collect();
    for epoch in &mut epochs {
        epoch.sort_by(f32::total_cmp);
        assert_eq!(*epoch, all);
    }
}

#[test]
fn the_learner_trains_on_one_device() {
    let _watchdog = Watchdog::start();
    let (loader, log) = train_loader(Line { bad: None });
    let device = ExecutionStrategy::SingleDevice(Device::flex().autodiff());
    let result = train(Arc::clone(&loader) as Arc<_>, device);
    check(&result, &log);
    let report = loader.last_report().expect("the learner has loaded each epoch to its end");
    assert_eq!((report.epoch, report.samples), (EPOCHS as u64 - 1, ITEMS as u64));
}

#[test]
fn the_learner_splits_the_loader_among_devices() {
    let _watchdog = Watchdog::start();
    let (loader, log) = train_loader(Line { bad: None });
    let devices = vec![Device::flex().autodiff(); 2];
    let strategy = ExecutionStrategy::MultiDevice(devices, MultiDeviceOptim::OptimMainDevice);
    check(&train(loader, strategy), &log);
}

#[test]
fn an_error_of_the_dataset_ends_the_training_and_is_reported() {
    let _watchdog = Watchdog::start();
    let (loader, log) = train_loader(Line { bad: Some(5) });
    let result =
        train(Arc::clone(&loader) as Arc<_>, ExecutionStrategy::SingleDevice(Device::flex().autodiff()));
    let error = result.error.expect("the training has ended").to_string();
    assert!(error.contains("point 5 is damaged"), "{error}");
    assert!(log.lock().unwrap().len() < ITEMS);
    assert!(loader.last_report().is_none(), "no epoch is over");
}
