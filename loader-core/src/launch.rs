//! What a main program and its workers must agree on before there is a pool.

use std::{
    any::type_name,
    sync::atomic::{AtomicBool, Ordering},
};

static INIT_RAN: AtomicBool = AtomicBool::new(false);

/// Notes that `loader_worker::init()` has run: this program, started again, becomes a worker.
#[doc(hidden)]
pub fn note_init() {
    // Relaxed: a flag alone; `init()` comes before every loader in program order.
    INIT_RAN.store(true, Ordering::Relaxed);
}

pub(crate) fn init_ran() -> bool {
    INIT_RAN.load(Ordering::Relaxed)
}

/// Names of the types that [`open`](crate::fetch::open) decodes: a worker program of other types is refused.
#[doc(hidden)]
pub fn types<D, C, W>() -> String {
    type_name::<(D, C, W)>().to_owned()
}
