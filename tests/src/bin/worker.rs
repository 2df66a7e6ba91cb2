//! A worker program that is not the main program.

use std::process::ExitCode;

use loader_tests::datasets::{Large, Noise};
use loader_worker::Registry;

fn main() -> ExitCode {
    Registry::new().register::<Noise>("noise").register::<Large>("large").serve()
}
