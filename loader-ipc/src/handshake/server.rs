//! The one-shot server that a worker makes and to which main connects. Its socket and folder are the loader's
//! only entries in the file system.
//!
//! The worker tells main the name of its server, and main checks the name before it connects. Otherwise a
//! wrong name could make main give the worker's queues to another process and remove that process's socket.
//!
//! ipc-channel's `connect` has two defects. It waits without a deadline if the server does not accept.
//! Therefore a separate thread connects. Main can leave this thread behind; it ends when the worker ends. The
//! second defect: `connect` leaks a descriptor if no process listens. Therefore the worker sends its socket
//! along. While main holds that socket, a process listens, even if the worker is dead by then.
//!
//! Alternative considered: main makes the connection itself, without blocking. Rejected because the server
//! accepts only one connection, and ipc-channel cannot take over a socket. The thread costs some tens of
//! microseconds for each worker.

use std::{
    env, fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    panic::catch_unwind,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use ipc_channel::{
    IpcError,
    ipc::{IpcOneShotServer, IpcSender},
};
use nix::sys::stat::{Mode, umask};
use rustix::{
    net::{
        SocketAddrUnix, SocketType, getsockname,
        sockopt::{socket_acceptconn, socket_type},
    },
    process::geteuid,
};
use serde::{Deserialize, Serialize};

use super::HandshakeError;
use crate::{
    advice::advice,
    lifeline::LifelineError,
    own_files,
    patience::Patience,
    signals::{uninterrupted, without_sigpipe},
    socket_file::remove_socket,
    socket_folder::MadeFolder,
    sys::{duplicate_sockets, with_variable},
};

/// Maximum length of a name that fits a socket's address.
const MAX_NAME_LEN: usize = 107;

/// A one-shot server with its name, socket and folder.
pub(super) struct Server<T> {
    pub(super) server: IpcOneShotServer<T>,
    pub(super) name: String,
    pub(super) socket: OwnedFd,
    /// Dropped after the server, which removes the contents of the folder.
    pub(super) folder: MadeFolder,
}

/// Makes the folder `socket_folder`, which only this user can access, and a server in it.
///
/// ipc-channel reads the folder from the environment, which can be changed only while no other thread may use
/// it. If other threads may, the server is made directly in the folder for temporary files. If that folder
/// cannot be used, or other users can rename what is in it, the parent of `socket_folder` replaces it, for everything that the worker makes with the
/// crate `tempfile` from then on.
///
/// Alternative considered: tell the crate `tempfile` that its default folder is `socket_folder`. Rejected
/// because that cannot be undone, and user code in the worker would make its temporary files there.
pub(super) fn make<T>(socket_folder: PathBuf) -> Result<Server<T>, String>
where
    T: for<'de> Deserialize<'de> + Serialize,
{
    let refused = |problem: &str| format!("no socket can be made at {}: {problem}", socket_folder.display());
    let folder = MadeFolder::at(socket_folder.clone()).map_err(|error| refused(&error.to_string()))?;
    // ipc-channel makes the folder and the socket with the user's umask, and panics on some errors.
    let before = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let new = || catch_unwind(IpcOneShotServer::new);
    let made = with_variable("TMPDIR", folder.path().as_os_str(), new).unwrap_or_else(|| {
        let made = new();
        let is_usable = matches!(&made, Ok(Ok((_, name))) if Path::new(name).exists())
            && own_files::check_shared_folder(&env::temp_dir()).is_ok();
        match folder.path().parent() {
            Some(parent) if !is_usable && parent != env::temp_dir() => {
                // This fails if the program has set a folder of its own.
                drop(tempfile::env::override_temp_dir(parent));
                new()
            }
            _ => made,
        }
    });
    umask(before);
    match made {
        Ok(Ok((server, name))) if Path::new(&name).exists() => {
            let socket = socket_of(&name).map_err(|error| {
                format!("the worker's own socket is not found: {error}{}", advice(&error))
            })?;
            Ok(Server { server, name, socket, folder })
        }
        Ok(Ok((_, name))) => Err(refused(&format!("the path {name} is too long"))),
        Ok(Err(error)) => Err(refused(&error.to_string())),
        Err(_) => Err(refused("ipc-channel panicked")),
    }
}

/// Finds the socket of this process that listens at `name`. ipc-channel does not expose it.
fn socket_of(name: &str) -> io::Result<OwnedFd> {
    for socket in duplicate_sockets() {
        let socket = socket?;
        if listens_at(&socket, name) {
            return Ok(socket);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no open socket listens at its name"))
}

fn listens_at(socket: &OwnedFd, name: &str) -> bool {
    let address = || SocketAddrUnix::try_from(getsockname(socket).ok()?).ok();
    socket_acceptconn(socket).unwrap_or(false)
        && socket_type(socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && address().is_some_and(|address| address.path_bytes() == Some(name.as_bytes()))
}

/// A server's name that main has checked.
#[derive(Debug)]
pub(super) struct Address {
    name: String,
    /// Held until [`send_welcome`](Self::send_welcome) returns: while main holds it, a process listens at the
    /// name, even if the worker is dead. It is closed then, so that a thread that still waits for a dead
    /// worker gets an error.
    socket: OwnedFd,
}

impl Address {
    /// Checks that `name` is the path of a socket of this user, in a folder that only this user can access,
    /// and that `socket` is the socket that listens there.
    pub(super) fn check(name: String, socket: Option<OwnedFd>) -> Result<Self, HandshakeError> {
        let refused = |what: &str| {
            Err(LifelineError::Malformed(format!("the name of the worker's server {what}")).into())
        };
        let path = Path::new(&name);
        if name.len() > MAX_NAME_LEN || name.contains('\0') || !path.is_absolute() {
            return refused("is not a valid path");
        }
        let Some(folder) = path.parent() else { return refused("is not the path of a file") };
        // The file does not exist any more if the worker has ended.
        let file = fs::symlink_metadata(path).map_err(HandshakeError::Queue)?;
        let folder = fs::symlink_metadata(folder).map_err(HandshakeError::Queue)?;
        let user = geteuid().as_raw();
        let others = (Mode::S_IRWXG | Mode::S_IRWXO).bits();
        if !file.file_type().is_socket() || file.uid() != user {
            return refused("is not the path of a socket of this user");
        }
        if !folder.is_dir() || folder.uid() != user || folder.mode() & others != 0 {
            return refused("is the path of a socket in a folder that other users can access");
        }
        match socket.filter(|socket| listens_at(socket, &name)) {
            Some(socket) => Ok(Self { name, socket }),
            None => refused("is not the name of the socket that came with it"),
        }
    }

    /// Connects and sends `welcome`, and waits for both with `patience`. Removes the socket's name.
    pub(super) fn send_welcome<T>(self, welcome: T, patience: &mut Patience<'_>) -> Result<(), HandshakeError>
    where
        T: Serialize + Send + 'static,
    {
        let Self { name, socket: _held } = self;
        let (done, outcome) = mpsc::channel();
        let connecting = move || {
            // Nobody receives the outcome if the wait has ended before.
            drop(done.send(connect(&name, welcome)));
        };
        thread::Builder::new()
            .name("loader-connect".into())
            .spawn(connecting)
            .map_err(HandshakeError::Queue)?;
        patience.wait(|step| match outcome.recv_timeout(step) {
            Ok(sent) => sent.map(Some),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(HandshakeError::Queue(io::Error::other("the thread that connects panicked")))
            }
        })
    }
}

fn connect<T: Serialize>(name: &str, welcome: T) -> Result<(), HandshakeError> {
    let connection = uninterrupted(|| IpcSender::connect(name.to_owned())).map_err(|error| {
        match error.raw_os_error() {
            // ipc-channel does not check whether it got a socket: without a free descriptor it fails with
            // EBADF.
            Some(nix::libc::EBADF) => HandshakeError::Queue(io::Error::from_raw_os_error(nix::libc::EMFILE)),
            _ => HandshakeError::Queue(error),
        }
    })?;
    // Main removes the socket, because the worker may be killed before it does so.
    remove_socket(Path::new(name));
    without_sigpipe(|| connection.send(welcome)).map_err(|error| {
        HandshakeError::Queue(match error {
            IpcError::Io(error) => error,
            error => io::Error::other(error.to_string()),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{
        os::{
            fd::AsFd,
            unix::{fs::PermissionsExt, net::UnixListener},
        },
        time::{Duration, Instant},
    };

    use rustix::net::{AddressFamily, SocketFlags, bind, listen, socket_with};

    use super::*;
    use crate::socket_folder::SocketFolder;

    fn connect_to(name: String, socket: impl AsFd, limit: Duration) -> Result<(), HandshakeError> {
        Address::check(name, Some(socket.as_fd().try_clone_to_owned().unwrap()))?
            .send_welcome(7u64, &mut Patience::new(limit))
    }

    /// A folder for one test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, mode: u32) -> Self {
            let path = env::temp_dir().join(format!("loader-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            // Set separately: other tests change the umask.
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn join(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    const SOON: Duration = Duration::from_secs(5);

    fn new_socket(flags: SocketFlags) -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// Makes a socket that listens at `name`, like that of a one-shot server, with a backlog of 0.
    fn server_at(name: &str) -> OwnedFd {
        let server = new_socket(SocketFlags::CLOEXEC);
        bind(&server, &SocketAddrUnix::new(name).unwrap()).unwrap();
        listen(&server, 0).unwrap();
        server
    }

    #[test]
    fn only_this_user_can_access_a_server() {
        let socket_folder = SocketFolder::choose(1).unwrap();
        let Server { folder: _folder, server, name, socket } =
            make::<u64>(socket_folder.path().to_owned()).unwrap();
        let path = Path::new(&name);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o077, 0);
        connect_to(name.clone(), socket, SOON).unwrap();
        assert_eq!(server.accept().unwrap().1, 7u64);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }

    #[test]
    fn making_a_server_does_not_change_the_folder_for_temporary_files() {
        let socket_folder = SocketFolder::choose(2).unwrap();
        // Other tests are threads of this process, so the server is made in the folder for temporary files.
        let _server = make::<u64>(socket_folder.path().to_owned()).unwrap();
        assert_eq!(tempfile::env::temp_dir(), env::temp_dir());
    }

    #[test]
    fn a_name_of_anything_but_the_workers_socket_is_refused_and_not_removed() {
        let (own, open) = (Folder::new("own", 0o700), Folder::new("open", 0o755));
        fs::write(own.join("file"), "kept").unwrap();
        let listener = UnixListener::bind(open.join("socket")).unwrap();
        let names = [
            "relative/socket".to_owned(),
            "/tmp/with\0zero".to_owned(),
            "/".to_owned(),
            String::new(),
            format!("/{}", "long/".repeat(10_000)),
            own.join("file"),
            own.0.to_str().unwrap().to_owned(),
            open.join("socket"),
        ];
        for name in names {
            let error = connect_to(name, &listener, SOON).unwrap_err();
            assert!(matches!(error, HandshakeError::Lifeline(LifelineError::Malformed(_))), "{error}");
        }
        assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "kept");
        assert!(Path::new(&open.join("socket")).exists());
        let error = connect_to(own.join("gone"), &listener, SOON).unwrap_err();
        assert!(error.is_gone(), "{error}");
        // A socket of another type, to which main cannot connect; then a socket that does not listen at that
        // name.
        let stream = UnixListener::bind(own.join("stream")).unwrap();
        for socket in [&stream, &listener] {
            let error = connect_to(own.join("stream"), socket, SOON).unwrap_err();
            assert!(matches!(error, HandshakeError::Lifeline(LifelineError::Malformed(_))), "{error}");
        }
        assert!(Path::new(&own.join("stream")).exists());
    }

    #[test]
    fn connecting_to_a_server_that_is_gone_leaks_no_descriptor() {
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for number in 0..100 {
            let folder = Folder::new(&format!("dead-{number}"), 0o700);
            let name = folder.join("socket");
            // Only main has the socket, as if the worker had sent it and died.
            let address = Address::check(name.clone(), Some(server_at(&name))).unwrap();
            // The connect thread fails before or after it has sent the message.
            drop(address.send_welcome(7u64, &mut Patience::new(SOON)));
        }
        // Other tests may open some descriptors too.
        assert!(open() < before + 80);
    }

    #[test]
    fn connecting_to_a_server_that_does_not_accept_times_out() {
        let folder = Folder::new("full", 0o700);
        let name = folder.join("socket");
        let server = server_at(&name);
        let address = SocketAddrUnix::new(&name).unwrap();
        // Connects until the backlog is full.
        let waiting: Vec<_> = (0..8)
            .map(|_| new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
            .take_while(|client| rustix::net::connect(client, &address).is_ok())
            .collect();
        assert!(waiting.len() < 8);
        let started = Instant::now();
        let error = connect_to(name, server, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, HandshakeError::Lifeline(LifelineError::TimedOut)), "{error}");
        assert!(started.elapsed() < Duration::from_secs(3));
    }
}
