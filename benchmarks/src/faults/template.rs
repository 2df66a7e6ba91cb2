//! The program that the workers' template runs, which gets a signal at a step of what it does.

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::Context;
use loader_worker::{Registry, Template};
use nix::{
    sys::signal::{Signal, kill, raise},
    unistd::{ForkResult, fork, getpid},
};

use crate::{
    host::{ARMED, Samples, pid},
    list::{Action, Ending, Fault, Outside, Step},
};

/// First argument of the program that is a template. The name of the fault and the number of the try follow.
pub(crate) const ARGUMENT: &str = "--template";
/// Name of the dataset in its registry.
pub(crate) const SAMPLES: &str = "samples";
/// Beginning of the name of a file that each template writes: its process id follows.
pub(crate) const PID: &str = "template-";

/// Moments at which a template gets the signal. Each try has one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// It has read nothing of main.
    Begin,
    /// It is ready for requests.
    Ready,
    /// It has read a request.
    Request,
    /// The fork has begun, and is not a worker yet.
    Fork,
    /// It has forked, and has not told main.
    Forked,
    /// It has told main.
    Told,
}

/// Serves main's requests, until the signal.
#[expect(unsafe_code, reason = "a template forks")]
pub(crate) fn serve(fault: &str, number: usize) -> anyhow::Result<ExitCode> {
    let Action::Outside(Outside::Template(step, ending)) = Fault::find(fault)?.action else {
        anyhow::bail!("the fault `{fault}` has no template");
    };
    let moments: &[Moment] = match step {
        Step::Start => &[Moment::Begin, Moment::Ready],
        Step::Fork => &[Moment::Request, Moment::Fork, Moment::Forked, Moment::Told],
        Step::BetweenEpochs => &[],
    };
    let chosen = moments.get(number % moments.len().max(1)).copied();
    let folder = env::temp_dir();
    fs::write(folder.join(format!("{PID}{}", getpid())), "")?;
    let reach = |moment| -> anyhow::Result<()> {
        // Only the process that removes the file gets the signal, so this happens once.
        if Some(moment) == chosen && fs::remove_file(folder.join(ARMED)).is_ok() {
            raise(signal(ending))?;
        }
        Ok(())
    };
    reach(Moment::Begin)?;
    let mut template = Template::from_stdin()?;
    reach(Moment::Ready)?;
    while let Some(request) = template.next_request()? {
        reach(Moment::Request)?;
        // SAFETY: this process has one thread, because the template has stopped the one that it had.
        match unsafe { fork() }? {
            ForkResult::Child => {
                reach(Moment::Fork)?;
                template.become_worker(request)?;
                return Ok(Registry::new().register::<Samples>(SAMPLES).serve());
            }
            ForkResult::Parent { child } => {
                reach(Moment::Forked)?;
                template.started(request, child.as_raw().cast_unsigned());
                reach(Moment::Told)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn signal(ending: Ending) -> Signal {
    match ending {
        Ending::Killed => Signal::SIGKILL,
        Ending::Stopped => Signal::SIGSTOP,
    }
}

/// Sends the signal to the template of this program.
pub(crate) fn end_running(ending: Ending) -> anyhow::Result<()> {
    let template = *pids(env::temp_dir())?.first().context("there is no template")?;
    Ok(kill(pid(template), signal(ending))?)
}

/// Returns the process ids of the templates that have written files to `folder`.
pub(crate) fn pids(folder: impl AsRef<Path>) -> anyhow::Result<Vec<u32>> {
    let names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name()));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let pids = names.iter().filter_map(|name| name.to_str()?.strip_prefix(PID)?.parse().ok());
    Ok(pids.collect())
}
