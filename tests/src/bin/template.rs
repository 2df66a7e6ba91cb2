//! A template: `test-template serve [FAULT]`. With `test-template host [FAULT]`, a main process whose workers the
//! template forks; it prints the process ids of its workers as one JSON line, and works until it is killed.
#![allow(unsafe_code)] // for `fork`

use std::{
    env, fs,
    io::{self, Write},
    process::{self, ExitCode},
    thread,
    time::Duration,
};

use anyhow::bail;
use loader_core::{WorkerProgram, prelude::*};
use loader_tests::datasets::{AsStream, Faulty, Noise, Slow};
use loader_worker::{Registry, Template};
use nix::{
    errno::Errno,
    sys::signal::{Signal, raise},
    unistd::{ForkResult, fork},
};

fn main() -> anyhow::Result<ExitCode> {
    let fault = env::args().nth(2).unwrap_or_default();
    match env::args().nth(1).as_deref() {
        Some("serve") => Ok(serve(&fault)?),
        Some("host") => host(&fault),
        _ => bail!("`serve` or `host` is missing"),
    }
}

fn serve(fault: &str) -> io::Result<ExitCode> {
    if let Some(token) = fault.strip_prefix("stops-while-it-loads-if-it-can-remove ")
        && fs::remove_file(token).is_ok()
    {
        raise(Signal::SIGSTOP)?;
    }
    let mut template = Template::from_stdin()?;
    if fault == "slow-to-load" {
        thread::sleep(Duration::from_secs(60));
    }
    let mut count = 0;
    while let Some(request) = template.next_request()? {
        count += 1;
        match (fault, count) {
            ("killed-before-the-second-fork", 2) => raise(Signal::SIGKILL)?,
            ("no-fork", 2) => {
                template.not_started(request, &Errno::EAGAIN.into());
                continue;
            }
            _ => {}
        }
        // SAFETY: this process has one thread.
        match unsafe { fork() }? {
            ForkResult::Child => {
                template.become_worker(request)?;
                return Ok(registry().serve());
            }
            ForkResult::Parent { .. } if (fault, count) == ("killed-after-the-second-fork", 2) => {
                raise(Signal::SIGKILL)?;
            }
            ForkResult::Parent { child } => template.started(request, child.as_raw().cast_unsigned()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn registry() -> Registry {
    let registry = Registry::new().register::<Noise>("noise").register::<Slow>("slow");
    registry.register::<Faulty>("faulty").register_stream::<AsStream<Noise>>("stream")
}

fn host(fault: &str) -> anyhow::Result<ExitCode> {
    let program = WorkerProgram::new(env::current_exe()?).args(["serve", fault]).template();
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(5) };
    let loader = DataLoader::builder(dataset).num_workers(2).worker_program(program).build()?;
    let batches = loader.iter()?;
    println!("{}", serde_json::to_string(&batches.worker_pids())?);
    io::stdout().flush()?;
    batches.for_each(drop);
    process::exit(7)
}
