//! Whether and where `loader::init()` was called, and the type names that guard a separate worker
//! program.

use std::{any::type_name, path::PathBuf, sync::OnceLock};

use loader_ipc::LoadedObject;

/// Where `loader::init()` was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Init {
    /// It was not called yet.
    NotCalled,
    /// In the main program, which therefore becomes a worker when it is started again.
    InProgram,
    /// In this shared library. If the main program is started again, it may not load the library.
    InLibrary(PathBuf),
}

static INIT: OnceLock<Init> = OnceLock::new();

/// Notes that `loader::init()` was called.
pub fn note_init() {
    INIT.get_or_init(|| library().map_or(Init::InProgram, Init::InLibrary));
}

/// Returns the shared library that contains the loader; `None` if the main program does.
pub(crate) fn library() -> Option<PathBuf> {
    let object = LoadedObject::containing(note_init as fn() as usize)?;
    (!object.is_program()).then(|| object.path().to_owned())
}

pub(crate) fn init() -> Init {
    INIT.get().cloned().unwrap_or(Init::NotCalled)
}

/// Returns the names of the types that [`open`](crate::data::fetch::open) decodes. A worker program that registered
/// the dataset with other types is refused.
pub fn types<D, C, W>() -> String {
    type_name::<(D, C, W)>().to_owned()
}
