//! The socket through which main and a new worker connect has a name in the file system for a moment.
//! ipc-channel's server in the worker removes the name. The functions here remove it if the worker may be
//! unable to do so.

use std::{
    env, fs, io, iter,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
    process::geteuid,
};

use crate::socket_folder::{candidates, is_socket_folder};

/// First characters of the names of ipc-channel's folders.
const FOLDER_PREFIX: &str = ".tmp";
/// Name of the socket in such a folder.
const SOCKET: &str = "socket";

/// Maximum age of a socket that belongs to a start that has just failed.
const RECENT: Duration = Duration::from_secs(60);

/// Removes a one-shot server's socket and the folders made for it. Ignores files that are gone already or
/// cannot be removed.
pub fn remove_socket(socket: &Path) {
    drop(fs::remove_file(socket));
    let Some(folder) = socket.parent() else { return };
    drop(fs::remove_dir(folder));
    drop(folder.parent().filter(|parent| is_socket_folder(parent)).map(fs::remove_dir));
}

/// Removes the sockets of workers that had several threads and were killed before they could tell main the
/// names of their sockets. ipc-channel has made such a socket in a folder inside the folder for temporary
/// files or inside a folder that main may choose. Main must have reaped the workers: until then they may have
/// the sockets open.
pub fn remove_abandoned_sockets() {
    remove_abandoned_since(SystemTime::now() - RECENT);
}

fn remove_abandoned_since(since: SystemTime) {
    // A worker makes its socket in the first folder, or in one of the others if it cannot use the first.
    let folders = iter::once(env::temp_dir()).chain(candidates());
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    for entry in entries {
        let has_name = entry.file_name().as_encoded_bytes().starts_with(FOLDER_PREFIX.as_bytes());
        // A link is left out: it could lead to another program's socket.
        let is_own = |found: fs::Metadata| found.is_dir() && found.uid() == geteuid().as_raw();
        if has_name && entry.metadata().is_ok_and(is_own) {
            let socket = entry.path().join(SOCKET);
            if is_abandoned(&socket, since).unwrap_or(false) {
                remove_socket(&socket);
            }
        }
    }
}

/// True for a socket of this user that was made after `since` and that no process has open.
fn is_abandoned(path: &Path, since: SystemTime) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(path)?;
    let is_new = metadata.modified()? >= since;
    if !is_new || !metadata.file_type().is_socket() || metadata.uid() != geteuid().as_raw() {
        return Ok(false);
    }
    Ok(!has_server(path)?)
}

/// True if a process has the socket at `path` open. Tries to connect with a socket of another type. The
/// kernel refuses this with `ECONNREFUSED` only if no process has the socket open; a process that has it open
/// does not notice the attempt.
fn has_server(path: &Path) -> io::Result<bool> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?) != Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, process};

    use super::*;

    #[test]
    fn only_a_new_socket_that_no_process_has_open_is_abandoned() {
        for folder in [env::temp_dir(), "/dev/shm".into()] {
            check_in(&folder.join(format!("{FOLDER_PREFIX}-{}", process::id())));
        }
    }

    fn check_in(folder: &Path) {
        fs::create_dir(folder).unwrap();
        let path = folder.join(SOCKET);
        let server = UnixListener::bind(&path).unwrap();
        remove_abandoned_sockets();
        assert!(path.exists() && has_server(&path).unwrap());
        // The name stays in the file system, as after a killed process.
        drop(server);
        assert!(!has_server(&path).unwrap());
        remove_abandoned_since(SystemTime::now() + RECENT);
        assert!(path.exists());
        remove_abandoned_sockets();
        assert!(!folder.exists());
    }
}
