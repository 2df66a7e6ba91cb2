//! What runs inside a loader's worker process.
//!
//! The default worker program is your own program, started again: call [`init`] first in `main`, and everything else is done for
//! you. Any dataset works, generic or composed, with no registration.
//!
//! ```no_run
//! fn main() -> anyhow::Result<()> {
//!     loader_worker::init(); // a worker never returns from this line
//!     // ... build a loader with num_workers(4), train
//!     Ok(())
//! }
//! ```
//!
//! In tests and benchmarks there is no `main` to put the line into: use [`init_before_main!`].
//!
//! Where the loader does not run in a program of its own (an extension of an interpreter), or that program is too large to be started
//! again for each worker, a worker program of its own serves a [`Registry`] of named datasets instead:
//!
//! ```no_run
//! # use loader_core::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct Photos;
//! # impl Dataset for Photos {
//! #     type Sample = u64;
//! #     fn len(&self) -> usize { 10 }
//! #     fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<u64> { Ok(index as u64) }
//! # }
//! fn main() -> std::process::ExitCode {
//!     loader_worker::Registry::new().register::<Photos>("photos").serve()
//! }
//! ```

mod bootstrap;
mod inbox;
mod inherited;
mod memory;
mod orders;
mod registry;
mod slots;
mod watchdog;

pub use registry::Registry;

#[doc(hidden)]
pub use ctor as __ctor;

/// Makes this process a worker if it was started as one, and never returns then. Call it first in `main`: what comes before it
/// runs in every worker too.
///
/// In a process that was not started as a worker it does next to nothing, and returns. If the call is in a
/// shared library instead of the main program, `build()` returns an error that asks for a worker program.
pub fn init() {
    if loader_ipc::process::is_worker() {
        let code = bootstrap::run(&Registry::new());
        std::process::exit(code);
    }
    loader_core::launch::note_init();
}

/// Calls [`init`] before `main`, for tests and benchmarks, whose `main` is not yours: put it once at the top level of the test
/// crate, and plain `cargo test` works with workers.
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
