//! A shared library that contains a loader, such as an extension of an interpreter: see
//! `tests/tests/workers/extension.rs`. Each exported function prints one line and returns the exit code.
#![allow(unsafe_code)] // for exported functions

use std::{env, process::ExitCode};

use loader_core::{Builder, Error, Map, WorkerProgram, function::MapFnWith, kind::MapStyle, prelude::*};
use loader_worker::Registry;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Numbers {
    count: usize,
}

impl Dataset for Numbers {
    type Sample = u64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

/// A composed dataset, which has a name in main and in workers.
#[derive(Serialize, Deserialize)]
struct Tripled(Subset<Numbers>);

impl Dataset for Tripled {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(3 * self.0.get(index, cx)?)
    }
}

type Scaled = Map<Numbers, MapFnWith<u64, u64, u64>>;

fn scaled() -> Builder<MapStyle<Scaled>> {
    DataLoader::builder(Numbers { count: 10 }.map_with(3, |factor, number, _cx| Ok(factor * number)))
}

/// Returns the interpreter as worker program, which loads this library and calls `entry` in it.
fn interpreter(entry: &str) -> anyhow::Result<WorkerProgram> {
    let library = env::args().nth(1).unwrap_or_default();
    Ok(WorkerProgram::new(env::current_exe()?).args([library.as_str(), entry]))
}

fn sum(loader: &DataLoader<Tensor<u64>>) -> Result<u64, Error> {
    loader.iter()?.map(|batch| Ok(batch?.as_slice().iter().sum::<u64>())).sum()
}

fn outcome(run: impl FnOnce() -> anyhow::Result<u64>) -> i32 {
    match run() {
        Ok(sum) => println!("sum {sum}"),
        Err(error) => {
            let kind = error.downcast_ref().map_or("other", Error::kind);
            println!("{kind}: {error:#}");
        }
    }
    0
}

/// Calls `init` in the library, as if the library were the program.
#[unsafe(no_mangle)]
pub extern "C" fn train_after_init() -> i32 {
    loader_worker::init();
    outcome(|| Ok(sum(&scaled().num_workers(2).build()?)?))
}

/// Does not call `init`.
#[unsafe(no_mangle)]
pub extern "C" fn train_without_init() -> i32 {
    outcome(|| Ok(sum(&scaled().num_workers(2).build()?)?))
}

/// Loads without workers, so that no process is started.
#[unsafe(no_mangle)]
pub extern "C" fn train_without_workers() -> i32 {
    outcome(|| Ok(sum(&scaled().build()?)?))
}

/// Loads a dataset with a function. The workers are the interpreter with the same library.
#[unsafe(no_mangle)]
pub extern "C" fn train() -> i32 {
    outcome(|| Ok(sum(&scaled().num_workers(2).worker_program(interpreter("serve")?).build()?)?))
}

/// Loads a registered dataset with the same workers.
#[unsafe(no_mangle)]
pub extern "C" fn train_registered() -> i32 {
    outcome(|| {
        let dataset = Tripled(Subset::new(Numbers { count: 100 }, (0..10).collect::<Vec<_>>())?);
        let builder = DataLoader::builder(dataset).num_workers(2).registered("tripled");
        Ok(sum(&builder.worker_program(interpreter("serve")?).build()?)?)
    })
}

/// The entry of a worker.
#[unsafe(no_mangle)]
pub extern "C" fn serve() -> i32 {
    let code = Registry::new().register::<Tripled>("tripled").serve();
    i32::from(code != ExitCode::SUCCESS)
}

/// Collates with a function of the interpreter at `address`, a `fn(Vec<u64>) -> anyhow::Result<u64>`.
#[unsafe(no_mangle)]
pub extern "C" fn train_with_foreign_function(address: usize) -> i32 {
    // SAFETY: the interpreter passes such a function, which was built with the same compiler and packages.
    let function = unsafe { std::mem::transmute::<usize, fn(Vec<u64>) -> anyhow::Result<u64>>(address) };
    outcome(|| {
        let builder = scaled().num_workers(1).collate(function).worker_program(interpreter("serve")?);
        Ok(builder.build()?.iter()?.flatten().sum())
    })
}
