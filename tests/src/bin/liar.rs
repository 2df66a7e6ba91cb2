//! A worker program. The process that finds a prepared lie breaks the protocol with it; all others are
//! honest.

use std::process::ExitCode;

use loader_ipc::process::is_worker;
use loader_tests::{
    datasets::{Counting, Noise},
    lies::Lie,
};
use loader_worker::Registry;

fn main() -> ExitCode {
    match is_worker().then(Lie::taken).flatten() {
        Some(lie) => match lie.tell() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{lie:?}: {error:#}");
                ExitCode::FAILURE
            }
        },
        None => Registry::new().register::<Noise>("noise").register_stream::<Counting>("counting").serve(),
    }
}
