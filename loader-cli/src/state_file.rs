//! The file that `--save-state` writes and `--resume` reads: the JSON of a [`State`].

use std::{
    collections::HashSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use loader_core::{State, internal::whole_file};

use crate::{
    replace_file,
    stop::{StateProblem, Stop},
};

/// Maximum number of bytes of a state.
const MAX_BYTES: u64 = 256 << 20;

/// The state that is to be written, and its file. Ctrl-C can end the process on another thread than that of
/// the run.
static UNSAVED: Mutex<Option<(PathBuf, State)>> = Mutex::new(None);

/// Reads the state that a run of `groups` groups of ranks resumes. The states of several files, or that of the only
/// process of a run, are merged if the number of groups has changed. Returns `None` if there are no files.
pub(crate) fn read_all(paths: &[PathBuf], groups: usize) -> Result<Option<State>, Stop> {
    let mut states = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let is_single_process = |state: &State| state.world_size() == 1 && groups > 1 && !state.is_merged();
    if states.len() > 1 || states.first().is_some_and(is_single_process) {
        return State::merge(states).map(Some).map_err(Stop::StatesNotMerged);
    }
    Ok(states.pop())
}

/// Checks that no rank of a run saves its state in place of a file that another rank may not have read yet: `save`
/// is a pattern for the files of all ranks, and `resumed` are the files that each of them reads.
pub(crate) fn check_names(save: &Path, resumed: &[PathBuf], world_size: usize) -> Result<(), Stop> {
    // A file that does not exist yet has no other name.
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let saved: HashSet<PathBuf> = (0..world_size).map(|rank| real(&of_rank(save, rank))).collect();
    match resumed.iter().find(|path| saved.contains(&real(path))) {
        Some(path) => Err(Stop::InvalidArguments(format!(
            "--save-state {} would replace {}, which --resume gives to all ranks, so a rank could read a state that \
             another rank has already replaced; give the new states other names",
            save.display(),
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Checks that each rank writes a file of its own.
pub(crate) fn check_is_own(option: &str, path: Option<&Path>, world_size: usize) -> Result<(), Stop> {
    match path.filter(|path| world_size > 1 && of_rank(path, 0) == of_rank(path, 1)) {
        Some(path) => Err(Stop::InvalidArguments(format!(
            "{option} {}: each rank needs a file of its own; write `{{rank}}` in the name, as in `run-{{rank}}.json`",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Returns `path` with the rank in place of each `{rank}`.
pub(crate) fn of_rank(path: &Path, rank: usize) -> PathBuf {
    path.to_str().map_or_else(|| path.to_owned(), |text| text.replace("{rank}", &rank.to_string()).into())
}

/// Reads the state in the file `path`.
fn read(path: &Path) -> Result<State, Stop> {
    let failed = |problem| Stop::StateNotUsable { path: path.to_owned(), problem };
    let text = whole_file::read(path, MAX_BYTES).map_err(|error| failed(StateProblem::NotRead(error)))?;
    serde_json::from_slice(&text).map_err(|error| failed(StateProblem::NotAState(error)))
}

/// Notes the state of a run for [`save`].
#[derive(Debug)]
pub(crate) struct Saver(PathBuf);

impl Saver {
    /// Checks that the file `path` can be written.
    pub(crate) fn new(path: PathBuf) -> Result<Self, Stop> {
        replace_file::check(&path).map_err(Stop::not_written(&path))?;
        Ok(Self(path))
    }

    pub(crate) fn note(&self, state: State) {
        *unsaved() = Some((self.0.clone(), state));
    }
}

/// Writes the state that was noted last, unless it was written already. Another call waits meanwhile, so that
/// the process does not end while the file is written.
pub(crate) fn save() -> Result<(), Stop> {
    let mut unsaved = unsaved();
    let Some((path, state)) = unsaved.take() else { return Ok(()) };
    replace_file::replace(&path, |file| {
        serde_json::to_writer(&mut *file, &state)?;
        file.write_all(b"\n")
    })
    .map_err(Stop::not_written(&path))
}

fn unsaved() -> MutexGuard<'static, Option<(PathBuf, State)>> {
    UNSAVED.lock().unwrap_or_else(PoisonError::into_inner)
}
