//! Files and folders whose paths other users may know: caches, indexes, and the folders around the sockets of
//! workers.
//!
//! Whoever may write to a folder can put a file, a link or a pipe there before the loader does, and replace what is
//! there at any time. The loader therefore uses only files that this user or root owns and that nobody else may
//! write, and follows no link to them.
//!
//! Alternative considered: checking all folders above, as sshd does. Rejected because shared disks usually have such
//! folders of other users, and because each file is checked after it was opened: whoever can rename a folder above can
//! only put another of this user's folders in its place.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag, sys::stat::Mode, unistd::geteuid};

const ROOT: u32 = 0;
/// The number that the kernel shows for an owner without a number in this user namespace. Root can be such an owner.
const UNMAPPED: u32 = 65534;

/// Why the loader does not use a file or a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotOwn {
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, who can change it at any time; remove it, make it yours (`chown`), or use another \
         folder",
        path.display()
    )]
    OtherOwner {
        /// The path.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// Its group or all users may write to it.
    #[error("other users may write to {}; forbid it (`chmod go-w`), or use another folder", path.display())]
    Writable {
        /// The path.
        path: PathBuf,
    },
    /// It is a symbolic link, or anything else but a file.
    #[error("{} is not a regular file; remove it, or use another folder", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl NotOwn {
    /// True if `error` is from this module, and not from the system.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<NotOwn> for io::Error {
    fn from(error: NotOwn) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// Checks that no other user but root can change what is in `folder`. A link to the folder must be this user's or
/// root's too.
///
/// # Errors
/// [`NotOwn`] if another user can; the error of the system if the folder does not exist.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let found = if found.is_symlink() {
        check_owner(folder, &found, None).and_then(|()| fs::metadata(folder))?
    } else {
        found
    };
    if found.is_dir() { check(folder, &found, None) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Opens the file `path` as `options` say, or makes it so that only this user can access it. Follows no symbolic
/// link, and does not wait for the other end of a named pipe. The file may also belong to the user `also`.
///
/// # Errors
/// [`NotOwn`] if it is not a regular file, or if any other user but root can change it.
pub fn open(path: &Path, options: &mut OpenOptions, also: Option<u32>) -> io::Result<File> {
    let not_a_file = || NotOwn::NotAFile { path: path.to_owned() };
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits()).open(path);
    let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        // Nobody reads from a named pipe.
        Some(Errno::ELOOP | Errno::ENXIO) => not_a_file().into(),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(not_a_file().into());
    }
    check(path, &found, also)?;
    Ok(file)
}

/// Makes a file at `path` for writing, with the permissions `mode`, in place of a file or a link that a killed process
/// or another user has left there.
///
/// # Errors
/// The error of the system.
pub fn make_anew(path: &Path, mode: u32) -> io::Result<File> {
    drop(fs::remove_file(path));
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Checks that no other user but root can replace what this user makes in `folder`, as in `/tmp`, where only the
/// owner of a file may rename or remove it.
///
/// # Errors
/// [`NotOwn`] if another user can; the error of the system if the folder does not exist.
pub(crate) fn check_shared_folder(folder: &Path) -> io::Result<()> {
    let found = fs::metadata(folder)?;
    check_owner(folder, &found, Some(UNMAPPED))?;
    if is_writable(&found) && found.mode() & Mode::S_ISVTX.bits() == 0 {
        Err(NotOwn::Writable { path: folder.to_owned() }.into())
    } else {
        Ok(())
    }
}

fn check(path: &Path, found: &Metadata, also: Option<u32>) -> io::Result<()> {
    check_owner(path, found, also)?;
    if is_writable(found) { Err(NotOwn::Writable { path: path.to_owned() }.into()) } else { Ok(()) }
}

fn check_owner(path: &Path, found: &Metadata, also: Option<u32>) -> io::Result<()> {
    let owner = found.uid();
    if [geteuid().as_raw(), ROOT].contains(&owner) || also == Some(owner) {
        Ok(())
    } else {
        Err(NotOwn::OtherOwner { path: path.to_owned(), owner }.into())
    }
}

/// True if others than the owner may write. An access list for other users shows as a permission of the group.
fn is_writable(found: &Metadata) -> bool {
    found.mode() & (Mode::S_IWGRP | Mode::S_IWOTH).bits() != 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use nix::unistd::mkfifo;

    use super::*;

    /// Another user than root, who runs no test.
    const OTHER: u32 = 4321;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Gives `path`, which may be a link, to another user. Returns false where this user may not.
    fn give_away(path: &Path) -> bool {
        let is_root = geteuid().is_root();
        if is_root {
            lchown(path, Some(OTHER), None).unwrap();
        } else {
            println!("SKIPPED: a file of another user: only root can make one");
        }
        is_root
    }

    fn refused<T>(result: io::Result<T>) -> NotOwn {
        let error = result.err().expect("it was not refused");
        assert!(NotOwn::is_in(&error), "{error}");
        *error.into_inner().unwrap().downcast().unwrap()
    }

    #[test]
    fn a_folder_that_other_users_can_change_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let (folder, link) = (outer.path().join("folder"), outer.path().join("link"));
        assert_eq!(check_folder(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        for mode in [0o700, 0o755] {
            set_mode(&folder, mode);
            check_folder(&folder).unwrap();
            check_folder(&link).unwrap();
        }
        for mode in [0o770, 0o702, 0o1777] {
            set_mode(&folder, mode);
            assert!(matches!(refused(check_folder(&folder)), NotOwn::Writable { .. }), "{mode:o}");
            assert!(matches!(refused(check_folder(&link)), NotOwn::Writable { .. }), "{mode:o}");
        }
        set_mode(&folder, 0o700);
        fs::write(outer.path().join("file"), "").unwrap();
        assert!(check_folder(&outer.path().join("file")).is_err());
        if give_away(&link) {
            assert!(matches!(refused(check_folder(&link)), NotOwn::OtherOwner { owner: OTHER, .. }));
            assert!(give_away(&folder));
            assert!(matches!(refused(check_folder(&folder)), NotOwn::OtherOwner { owner: OTHER, .. }));
        }
    }

    #[test]
    fn a_file_that_other_users_can_change_and_a_link_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = |also| open(&path, OpenOptions::new().read(true).append(true).create(true), also);
        assert_eq!(open(None).unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        for mode in [0o620, 0o602] {
            set_mode(&path, mode);
            assert!(matches!(refused(open(None)), NotOwn::Writable { .. }), "{mode:o}");
        }
        set_mode(&path, 0o644);
        open(None).unwrap();
        if give_away(&path) {
            assert!(matches!(refused(open(None)), NotOwn::OtherOwner { owner: OTHER, .. }));
            open(Some(OTHER)).unwrap();
            chown(&path, Some(0), None).unwrap();
            open(None).unwrap();
        }
        let target = folder.path().join("target");
        fs::rename(&path, &target).unwrap();
        symlink(&target, &path).unwrap();
        assert!(matches!(refused(open(None)), NotOwn::NotAFile { .. }));
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert!(matches!(refused(open(None)), NotOwn::NotAFile { .. }));
    }

    #[test]
    fn a_new_file_replaces_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("new"), folder.path().join("target"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        assert!(make_anew(&path, 0o644).unwrap().metadata().unwrap().is_file());
        assert!(!path.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"kept");
    }

    #[test]
    fn a_folder_in_which_other_users_can_rename_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_usable) in
            [(0o700, true), (0o755, true), (0o1777, true), (0o1770, true), (0o777, false), (0o770, false)]
        {
            set_mode(folder.path(), mode);
            assert_eq!(check_shared_folder(folder.path()).is_ok(), is_usable, "{mode:o}");
        }
        set_mode(folder.path(), 0o1777);
        if give_away(folder.path()) {
            refused(check_shared_folder(folder.path()));
        }
    }
}
