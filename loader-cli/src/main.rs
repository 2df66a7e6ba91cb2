//! The `loader` command. `loader run` loads epochs from files; `loader plan` prints the indices of batches;
//! `loader inspect` prints what is in a dataset; `loader config` prints the settings of a run; `loader index`
//! makes the stored indexes of data files; `loader pack` packs files into archives; `loader doctor` checks the
//! machine; `loader tune` finds the number of workers.
//!
//! `arguments`, `options` and `settings` read the command line and the config, and `layout` finds the data
//! files of a folder. `dataset` and `run` open and load the dataset, `events` and `reporter` print what
//! happens, `progress` and `worker_view` show it on a `terminal`, `state_file` reads and writes the state of
//! a run, `page` writes the page about it, and `stop` determines the exit status.

mod arguments;
mod config;
mod doctor;
mod events;
#[cfg(feature = "formats")]
mod index;
mod inspect;
mod interrupt;
#[cfg(feature = "formats")]
mod layout;
mod options;
#[cfg(feature = "formats")]
mod pack;
mod page;
mod plan;
mod progress;
mod replace_file;
mod reporter;
mod run;
mod schema;
mod settings;
mod state_file;
mod stop;
mod terminal;
mod tune;
mod worker_view;
mod workers;

use std::{
    io,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use arguments::{Arguments, Command};
use interrupt::Interrupt;
use reporter::Reporter;
use rustix::io::fcntl_getfd;
use stop::Stop;

/// True if standard output was closed when the program started. Rust opens `/dev/null` in its place before `main`.
static IS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor(unsafe)]
fn note_closed_output() {
    // Relaxed: the process has one thread.
    IS_OUTPUT_CLOSED.store(fcntl_getfd(io::stdout()).is_err(), Ordering::Relaxed);
}

/// Says that standard output is closed, and returns the exit status.
fn output_closed(reporter: &mut Reporter) -> ExitCode {
    let problem = "it is closed; to discard what the command prints, redirect it to /dev/null";
    let stop = Stop::Output(io::Error::other(problem));
    reporter.stopped(&stop);
    stop.status()
}

fn main() -> ExitCode {
    loader_worker::init();
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        // A command that asks for nothing else prints its help on standard error, with another status.
        Err(Stop::HelpPrinted(0)) if IS_OUTPUT_CLOSED.load(Ordering::Relaxed) => {
            return output_closed(&mut Reporter::new(false));
        }
        Err(stop) => {
            // Parsing failed, so look for `--json` among all arguments.
            let json = std::env::args_os().any(|argument| argument == "--json");
            Reporter::new(json).stopped(&stop);
            return stop.status();
        }
    };
    let mut reporter = Reporter::new(arguments.json());
    if IS_OUTPUT_CLOSED.load(Ordering::Relaxed) {
        return output_closed(&mut reporter);
    }
    let outcome = Interrupt::watch(reporter.screen()).map_err(Stop::NoSignals).and_then(|interrupt| {
        match &arguments.command {
            Command::Run(arguments) => run::run(arguments, &mut reporter, interrupt),
            Command::Plan(arguments) => plan::plan(arguments, &reporter, interrupt).map(|()| 0),
            Command::Config(arguments) => config::config(arguments).map(|()| 0),
            Command::Doctor(arguments) => doctor::doctor(arguments, &reporter, interrupt),
            Command::Tune(arguments) => tune::tune(arguments, &mut reporter, interrupt),
            Command::Inspect(arguments) => inspect::inspect(arguments, &mut reporter, interrupt),
            #[cfg(feature = "formats")]
            Command::Index(arguments) => index::index(arguments, &reporter),
            #[cfg(feature = "formats")]
            Command::Pack(arguments) => pack::pack(arguments, &mut reporter, interrupt),
            #[cfg(not(feature = "formats"))]
            Command::Index(_) | Command::Pack(_) => Err(Stop::InvalidArguments(
                "this `loader` was built without `index` and `pack`; build it with `--features formats`"
                    .to_owned(),
            )),
        }
    });
    match outcome {
        Ok(failures) => ExitCode::from(u8::from(failures > 0)),
        Err(stop) => {
            reporter.stopped(&stop);
            stop.status()
        }
    }
}
