//! The one-shot server that a worker makes and main connects to: the only thing of the loader with a name in the file system.
//!
//! The name is what a worker says, so main looks first whether it can be true: connecting somewhere else would give a stranger the worker's
//! queues, and afterwards the socket is removed. ipc-channel's `connect` has two traps. It waits without a deadline where a server does
//! not accept, so it is done by a thread that can be left behind; it ends with the worker. And it loses a descriptor where nobody
//! listens: the worker sends its socket along, and while main holds that, somebody does, even if the worker is dead by then.
//!
//! Two ways were weighed for the waiting. A connection of our own could be made without waiting, but the server accepts one only, and
//! ipc-channel does not take over a socket. The thread costs some tens of microseconds a worker.

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
    time::Instant,
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
    held::{uninterrupted, without_sigpipe},
    lifeline::LifelineError,
    meeting::MadeFolder,
    socket_file::remove_socket,
    sys::{duplicate_sockets, with_variable},
};

/// Longest name that fits a socket's address.
const LONGEST_NAME: usize = 107;

/// A one-shot server, and where it is.
pub(super) struct Server<T> {
    pub(super) server: IpcOneShotServer<T>,
    pub(super) name: String,
    pub(super) socket: OwnedFd,
    /// Dropped after the server, which removes what lies in the folder.
    pub(super) folder: MadeFolder,
}

/// Makes the folder `meeting`, which only this user can access, and a server in it.
///
/// ipc-channel reads the folder from the environment. If other threads might use the environment at the same
/// time, the server is made directly in the folder for temporary files. If that folder cannot be used, the folder
/// that main has chosen replaces it, for all that the worker makes with the crate `tempfile` from then on.
///
/// Alternative considered: to tell the crate `tempfile` that its default folder is `meeting`. Rejected because that cannot be taken back,
/// and the user's code in the worker would make its temporary files there.
pub(super) fn make<T>(meeting: PathBuf) -> Result<Server<T>, String>
where
    T: for<'de> Deserialize<'de> + Serialize,
{
    let refused = |problem: &str| format!("no socket can be made at {}: {problem}", meeting.display());
    let folder = MadeFolder::at(meeting.clone()).map_err(|error| refused(&error.to_string()))?;
    // ipc-channel makes folder and socket with the user's umask, and panics on some errors.
    let before = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let new = || catch_unwind(IpcOneShotServer::new);
    let made = with_variable("TMPDIR", folder.path().as_os_str(), new).unwrap_or_else(|| {
        let made = new();
        let is_usable = matches!(&made, Ok(Ok((_, name))) if Path::new(name).exists());
        match folder.path().parent() {
            Some(parent) if !is_usable && parent != env::temp_dir() => {
                // It fails where the program has set its own folder.
                drop(tempfile::env::override_temp_dir(parent));
                new()
            }
            _ => made,
        }
    });
    umask(before);
    match made {
        Ok(Ok((server, name))) if Path::new(&name).exists() => {
            let socket = socket_of(&name)
                .map_err(|error| format!("its own socket cannot be found: {error}{}", advice(&error)))?;
            Ok(Server { server, name, socket, folder })
        }
        Ok(Ok((_, name))) => Err(refused(&format!("the path {name} is too long"))),
        Ok(Err(error)) => Err(refused(&error.to_string())),
        Err(_) => Err(refused("ipc-channel panicked")),
    }
}

/// The socket of this process that listens at `name`, which ipc-channel does not expose.
fn socket_of(name: &str) -> io::Result<OwnedFd> {
    for socket in duplicate_sockets()? {
        let socket = socket?;
        if listens_at(&socket, name) {
            return Ok(socket);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "its socket is not found"))
}

fn listens_at(socket: &OwnedFd, name: &str) -> bool {
    let address = || SocketAddrUnix::try_from(getsockname(socket).ok()?).ok();
    socket_acceptconn(socket).unwrap_or(false)
        && socket_type(socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && address().is_some_and(|address| address.path_bytes() == Some(name.as_bytes()))
}

/// A server's name that can be true.
#[derive(Debug)]
pub(super) struct Address {
    name: String,
    /// Held while main connects, so that somebody listens there; no longer, so that whoever waits for an answer learns that there is none.
    socket: OwnedFd,
}

impl Address {
    /// Believes `name`, unless it is anything but a socket of this user's in a folder that is this user's alone, and `socket` what
    /// listens there.
    pub(super) fn check(name: String, socket: Option<OwnedFd>) -> Result<Self, HandshakeError> {
        let refused = |what: &str| Err(LifelineError::Malformed(format!("{what} as its server")).into());
        let path = Path::new(&name);
        if name.len() > LONGEST_NAME || name.contains('\0') || !path.is_absolute() {
            return refused("it names no path");
        }
        let Some(folder) = path.parent() else { return refused("it names no file") };
        // It may be gone, perhaps with its worker.
        let file = fs::symlink_metadata(path).map_err(HandshakeError::Queue)?;
        let folder = fs::symlink_metadata(folder).map_err(HandshakeError::Queue)?;
        let user = geteuid().as_raw();
        let others = (Mode::S_IRWXG | Mode::S_IRWXO).bits();
        if !file.file_type().is_socket() || file.uid() != user {
            return refused("it names what is no socket of this user's");
        }
        if !folder.is_dir() || folder.uid() != user || folder.mode() & others != 0 {
            return refused("it names a socket where others have rights");
        }
        match socket.filter(|socket| listens_at(socket, &name)) {
            Some(socket) => Ok(Self { name, socket }),
            None => refused("it names another socket than it has"),
        }
    }

    /// Connects and sends `welcome`, until `deadline`. Nobody needs the name afterwards, and it is removed.
    pub(super) fn greet<T>(self, welcome: T, deadline: Instant) -> Result<(), HandshakeError>
    where
        T: Serialize + Send + 'static,
    {
        let Self { name, socket: _held } = self;
        let (done, outcome) = mpsc::channel();
        let greeting = move || {
            // Nobody listens when it took too long.
            drop(done.send(connect(&name, welcome)));
        };
        thread::Builder::new()
            .name("loader-connect".into())
            .spawn(greeting)
            .map_err(HandshakeError::Queue)?;
        match outcome.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(greeted) => greeted,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(LifelineError::TimedOut.into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(HandshakeError::Queue(io::Error::other("the thread that connects panicked")))
            }
        }
    }
}

fn connect<T: Serialize>(name: &str, welcome: T) -> Result<(), HandshakeError> {
    let connection = uninterrupted(|| IpcSender::connect(name.to_owned())).map_err(|error| {
        match error.raw_os_error() {
            // ipc-channel does not look whether it got a socket: this is how it fails without descriptors.
            Some(nix::libc::EBADF) => HandshakeError::Queue(io::Error::from_raw_os_error(nix::libc::EMFILE)),
            _ => HandshakeError::Queue(error),
        }
    })?;
    // The worker might be killed before it removes it.
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
        time::Duration,
    };

    use rustix::net::{AddressFamily, SocketFlags, bind, listen, socket_with};

    use super::*;
    use crate::meeting::MeetingPlace;

    fn greet(name: String, socket: impl AsFd, deadline: Instant) -> Result<(), HandshakeError> {
        Address::check(name, Some(socket.as_fd().try_clone_to_owned().unwrap()))?.greet(7u64, deadline)
    }

    /// A folder of this test's own.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, mode: u32) -> Self {
            let path = env::temp_dir().join(format!("loader-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            // Not with the folder: other tests change what the user gives new files.
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

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn new_socket(flags: SocketFlags) -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// A socket that listens there, like a one-shot server's, with no room for anybody who waits.
    fn server_at(name: &str) -> OwnedFd {
        let server = new_socket(SocketFlags::CLOEXEC);
        bind(&server, &SocketAddrUnix::new(name).unwrap()).unwrap();
        listen(&server, 0).unwrap();
        server
    }

    #[test]
    fn a_server_is_this_users_alone() {
        let meeting = MeetingPlace::choose(1).unwrap();
        let Server { folder: _folder, server, name, socket } =
            make::<u64>(meeting.path().to_owned()).unwrap();
        let path = Path::new(&name);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o077, 0);
        greet(name.clone(), socket, soon()).unwrap();
        assert_eq!(server.accept().unwrap().1, 7u64);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }

    #[test]
    fn a_server_leaves_the_folder_for_temporary_files_as_it_is() {
        let meeting = MeetingPlace::choose(2).unwrap();
        // The other tests are threads of this process.
        let _server = make::<u64>(meeting.path().to_owned()).unwrap();
        assert_eq!(tempfile::env::temp_dir(), env::temp_dir());
    }

    #[test]
    fn what_is_no_socket_of_ours_is_refused_and_left() {
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
            let error = greet(name, &listener, soon()).unwrap_err();
            assert!(matches!(error, HandshakeError::Lifeline(LifelineError::Malformed(_))), "{error}");
        }
        assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "kept");
        assert!(Path::new(&open.join("socket")).exists());
        let error = greet(own.join("gone"), &listener, soon()).unwrap_err();
        assert!(error.is_gone(), "{error}");
        // Of another kind, so that connecting would fail; and another one than it says.
        let stream = UnixListener::bind(own.join("stream")).unwrap();
        for socket in [&stream, &listener] {
            let error = greet(own.join("stream"), socket, soon()).unwrap_err();
            assert!(matches!(error, HandshakeError::Lifeline(LifelineError::Malformed(_))), "{error}");
        }
        assert!(Path::new(&own.join("stream")).exists());
    }

    #[test]
    fn a_server_that_is_gone_costs_no_descriptor() {
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for number in 0..100 {
            let folder = Folder::new(&format!("dead-{number}"), 0o700);
            let name = folder.join("socket");
            // Nobody has it open but main, to whom it was sent.
            let address = Address::check(name.clone(), Some(server_at(&name))).unwrap();
            // It notices before it has sent something, or after.
            drop(address.greet(7u64, soon()));
        }
        // Other tests open some meanwhile.
        assert!(open() < before + 80);
    }

    #[test]
    fn a_server_that_does_not_accept_ends_with_the_deadline() {
        let folder = Folder::new("full", 0o700);
        let name = folder.join("socket");
        let server = server_at(&name);
        let address = SocketAddrUnix::new(&name).unwrap();
        // Until its queue is full.
        let waiting: Vec<_> = (0..8)
            .map(|_| new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
            .take_while(|client| rustix::net::connect(client, &address).is_ok())
            .collect();
        assert!(waiting.len() < 8);
        let started = Instant::now();
        let error = greet(name, server, started + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, HandshakeError::Lifeline(LifelineError::TimedOut)), "{error}");
        assert!(started.elapsed() < Duration::from_secs(3));
    }
}
