//! Replaces a file atomically: after a crash it has either the old content or the new content.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use loader_core::internal::own_files;

/// Checks that the file `path` can be replaced, but does not change it.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let temporary = temporary(path);
    if path.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        own_files::make_anew(&temporary, 0o666).and_then(|_| fs::remove_file(&temporary))
    }
}

/// Replaces the file `path` by what `write` writes, unless that returns an error. The permissions stay.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary(path);
    let written = own_files::make_anew(&temporary, 0o666).and_then(|mut file| {
        if let Ok(metadata) = fs::metadata(path) {
            file.set_permissions(metadata.permissions())?;
        }
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The temporary file, in the folder of `path` because a file cannot be renamed to another file system.
fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}
