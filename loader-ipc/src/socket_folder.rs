//! The folder through which main and a new worker connect. It exists for a moment, and is the loader's only
//! entry in the file system.
//!
//! ipc-channel makes a folder and a socket inside the folder for temporary files. For each worker, main
//! chooses the name of a folder in advance; the worker makes that folder, and ipc-channel uses it as the
//! folder for temporary files. If the worker is killed at any moment, main can remove what the worker left,
//! without touching another program's files.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf, absolute},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

use crate::own_files;

/// First part of the name of a worker's folder; 16 hexadecimal digits follow.
const PREFIX: &str = ".loader-";
/// Maximum length of a socket's path, without the terminating zero byte.
const MAX_SOCKET_PATH: usize = 107;
/// Length of what follows the chosen folder: `/.loader-0123456789abcdef/.tmpABCDEF/socket`.
const SUFFIX_LEN: usize = 1 + PREFIX.len() + 16 + "/.tmpABCDEF/socket".len();
/// Maximum length of the path of a folder in which a worker's folder can be made.
pub const MAX_FOLDER_PATH: usize = MAX_SOCKET_PATH - SUFFIX_LEN;

/// The name of one worker's folder, which the worker makes. Dropping this removes the folder and its
/// contents; the worker must be connected or reaped by then.
#[derive(Debug)]
pub struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Chooses a name in the first usable of these folders: `TMPDIR` if it is set and not empty,
    /// `XDG_RUNTIME_DIR` likewise, `/dev/shm`, `/tmp`.
    ///
    /// # Errors
    /// If no folder can be used. The text tells the user why.
    pub fn choose(number: u64) -> Result<Self, String> {
        let mut problems = Vec::new();
        for folder in candidates() {
            match try_folder(&folder, number) {
                Ok(path) => return Ok(Self(path)),
                Err(problem) => problems.push(format!("{} ({problem})", folder.display())),
            }
        }
        Err(format!(
            "no socket can be made in {}; set TMPDIR to an existing, writable folder in which no other user can rename files, and \
             whose path has at most {MAX_FOLDER_PATH} bytes",
            problems.join(", ")
        ))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // The worker has removed it already, unless it was killed.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The worker's side: the folder, which the worker has made. Dropping this removes the folder if it is empty.
#[derive(Debug)]
pub(crate) struct MadeFolder(PathBuf);

impl MadeFolder {
    /// Makes a folder that only this user can access.
    pub(crate) fn at(path: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MadeFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.0));
    }
}

/// True if the path has the form of a [`SocketFolder`].
pub(crate) fn is_socket_folder(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// Returns the folders in which a worker's folder may be made, in order of preference.
pub(crate) fn candidates() -> impl Iterator<Item = PathBuf> {
    let named = ["TMPDIR", "XDG_RUNTIME_DIR"].into_iter().filter_map(env::var_os);
    let named = named.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    named.chain(["/dev/shm", "/tmp"].map(PathBuf::from))
}

/// Returns the path of the folder that the worker will make in `folder`, if a folder can be made there.
fn try_folder(folder: &Path, number: u64) -> Result<PathBuf, String> {
    let path = absolute(folder).map_err(|error| error.to_string())?;
    let bytes = path.as_os_str().len();
    if bytes > MAX_FOLDER_PATH {
        return Err(format!("its path of {bytes} bytes is too long"));
    }
    if path.to_str().is_none() {
        return Err("its path is not Unicode".to_owned());
    }
    own_files::check_shared_folder(&path).map_err(|error| error.to_string())?;
    check_writable(&path).map_err(|error| error.to_string())?;
    Ok(path.join(format!("{PREFIX}{number:016x}")))
}

/// Checks that this process can make files in `folder`, by making a file without a name.
///
/// Alternative considered: main makes the worker's folder itself, or makes it and removes it again. Rejected
/// because the folder stays behind if main is killed meanwhile, and because another user who sees the name
/// can take it before the worker does.
fn check_writable(folder: &Path) -> io::Result<()> {
    let unnamed = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    match open(folder, unnamed, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(_file) => Ok(()),
        // The file system has no unnamed files. A folder is made and removed instead; its random name does
        // not reveal the name of the worker's folder.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR) => {
            tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder).map(drop)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_folder_that_can_be_used_is_chosen() {
        let chosen = SocketFolder::choose(7).unwrap();
        assert!(!chosen.path().exists() && is_socket_folder(chosen.path()));
        let longest = chosen.path().join(".tmpABCDEF/socket");
        assert!(longest.as_os_str().len() <= MAX_SOCKET_PATH);
        assert!(try_folder(Path::new("/nowhere"), 7).is_err());
        assert!(try_folder(Path::new("/proc"), 7).is_err(), "not even as root");
        let open_to_all = tempfile::tempdir().unwrap();
        fs::set_permissions(open_to_all.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(try_folder(open_to_all.path(), 7).unwrap_err().contains("other users may write"));
        let long = format!("/{}", "long/".repeat(20));
        assert!(try_folder(Path::new(&long), 7).unwrap_err().contains("is too long"));
    }

    #[test]
    fn dropping_the_socket_folder_removes_what_the_worker_left() {
        let chosen = SocketFolder::choose(8).unwrap();
        let made = MadeFolder::at(chosen.path().to_owned()).unwrap();
        assert!(MadeFolder::at(chosen.path().to_owned()).is_err(), "a folder that exists is not used");
        fs::create_dir(made.path().join(".tmpABCDEF")).unwrap();
        let path = made.path().to_owned();
        drop(made);
        assert!(path.exists(), "the worker removes the folder only if it is empty");
        drop(chosen);
        assert!(!path.exists());
    }
}
