//! The part of the loader that runs in a worker process. The package `process-loader` exports it for programs.
//!
//! The default worker program is your own program, which the loader starts again. Call [`init`] first in
//! `main`. Then any dataset works, including generic and composed datasets, without registration.
//!
//! ```no_run
//! fn main() -> anyhow::Result<()> {
//!     loader_worker::init(); // a worker never returns from this line
//!     // ... build a loader with num_workers(4), train
//!     Ok(())
//! }
//! ```
//!
//! Tests and benchmarks have no `main` of their own: use [`init_before_main!`] there.
//!
//! A separate worker program can serve a [`Registry`] of named datasets instead. Use one if the loader runs
//! as an extension of an interpreter, or if your program is too large to be started again for each worker:
//!
//! ```no_run
//! # use loader_core::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct Photos;
//! # impl Dataset for Photos {
//! #     type Sample = u64;
//! #     fn len(&self) -> usize { 10 }
//! #     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> { Ok(index as u64) }
//! # }
//! fn main() -> std::process::ExitCode {
//!     loader_worker::Registry::new().register::<Photos>("photos").serve()
//! }
//! ```

mod bootstrap;
mod commands;
mod encode;
mod inbox;
mod inherited;
mod memory;
mod progress;
mod registry;
mod slots;
mod template;
mod watchdog;

pub use registry::Registry;
pub use template::{StartRequest, Streams, Template};

#[doc(hidden)]
pub use ctor as __ctor;

/// Turns this process into a worker if it was started as one, and then never returns. Call it first in
/// `main`: code before it runs in every worker too.
///
/// In any other process it notes the call and returns. If the call is in a shared library instead of the main
/// program, `build()` returns an error that asks for a worker program.
pub fn init() {
    if loader_ipc::process::is_worker() {
        let code = bootstrap::run(&Registry::new());
        std::process::exit(code);
    }
    loader_core::internal::note_init();
}

/// Calls [`init`] before `main`, for tests and benchmarks, whose `main` you do not write. Put it once at the
/// top level of the test crate; `cargo test` then works with workers.
///
/// # Examples
/// ```
/// # mod tests {
/// loader_worker::init_before_main!();
/// # }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! init_before_main {
    () => {
        const _: () = {
            #[$crate::__ctor::ctor(unsafe, crate_path = $crate::__ctor)]
            fn init_loader_worker() {
                $crate::init();
            }
        };
    };
}
