//! A debugger that has lost interest: `test-tracer PID...` traces processes, prints a line, and never waits for them.

use std::{env, thread};

use loader_tests::processes;

fn main() -> anyhow::Result<()> {
    for pid in env::args().skip(1) {
        processes::trace(pid.parse()?)?;
    }
    println!("traces");
    loop {
        thread::park();
    }
}
