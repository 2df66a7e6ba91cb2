//! What a main program and its workers must agree on before there is a pool.

use std::{any::type_name, path::PathBuf, sync::OnceLock};

use loader_ipc::LoadedObject;

/// Where `loader_worker::init()` was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Init {
    /// Not yet.
    NotCalled,
    /// In the main program, which becomes a worker when it is started again.
    InProgram,
    /// In this shared library: the main program, started again, might not load it.
    InLibrary(PathBuf),
}

static INIT: OnceLock<Init> = OnceLock::new();

/// Notes that `loader_worker::init()` has run.
#[doc(hidden)]
pub fn note_init() {
    INIT.get_or_init(|| match LoadedObject::containing(note_init as fn() as usize) {
        Some(object) if !object.is_program() => Init::InLibrary(object.path().to_owned()),
        _ => Init::InProgram,
    });
}

pub(crate) fn init() -> Init {
    INIT.get().cloned().unwrap_or(Init::NotCalled)
}

/// Names of the types that [`open`](crate::fetch::open) decodes: a worker program of other types is refused.
#[doc(hidden)]
pub fn types<D, C, W>() -> String {
    type_name::<(D, C, W)>().to_owned()
}
