//! Passes on what workers print, line by line, each with a prefix that names the worker.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use loader_ipc::held_fd::HeldFd;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{read, write},
};

/// Maximum length of a line in bytes; longer lines are split. A line and its prefix fit in [`ATOMIC_WRITE`].
const MAX_LINE: usize = 4000;
/// Number of bytes that a pipe that polls as writable accepts without blocking (PIPE_BUF).
const ATOMIC_WRITE: usize = 4096;
/// Number of pending bytes from which on main reads no more of a worker's output, until standard error
/// accepts some. The worker then blocks when it prints.
const MAX_PENDING: usize = 64 * 1024;
/// Maximum time for which the output of a worker that has ended waits for standard error.
const FINISH_DEADLINE: Duration = Duration::from_millis(200);

/// Copies one worker's output to the standard error of this process. It never blocks on the reader of
/// standard error.
#[derive(Debug)]
pub(super) struct Output {
    prefix: String,
    pipe: HeldFd,
    /// Used only for its descriptor, without its lock, since a thread of the host may hold that.
    stderr: io::Stderr,
    line: Vec<u8>,
    pending: Vec<u8>,
    ended: bool,
}

impl Output {
    /// Creates a pipe. Returns the reading side, and the descriptor that becomes the worker's standard output
    /// and standard error.
    pub(super) fn pipe(worker: usize) -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let prefix = format!("[worker {worker}] ");
        let (line, pending) = (Vec::new(), Vec::new());
        let pipe = HeldFd::new(reader.into());
        let output = Self { prefix, pipe, stderr: io::stderr(), line, pending, ended: false };
        Ok((output, writer.into()))
    }

    /// Passes on a bounded part of the available output, without waiting. False if all output was passed on
    /// and no more can come.
    pub(super) fn relay(&mut self) -> bool {
        self.write_pending();
        let mut bytes = [0; 8 * 1024];
        while self.pending.len() < MAX_PENDING && !self.ended {
            // If the program has closed the pipe, no more can be read.
            match self.pipe.get().map_or(Ok(0), |pipe| read(pipe, &mut bytes)) {
                Ok(0) => self.ended = true,
                Ok(count) => bytes[..count].iter().for_each(|&byte| self.take(byte)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => self.ended = true,
            }
        }
        if self.ended {
            self.end_line();
        }
        self.write_pending();
        !self.ended || !self.pending.is_empty()
    }

    /// Passes on what a worker that has ended has printed, and drops what standard error does not accept
    /// within [`FINISH_DEADLINE`].
    pub(super) fn finish(mut self) {
        let deadline = Instant::now() + FINISH_DEADLINE;
        while self.relay() && Instant::now() < deadline && !self.pending.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Its last line may have no end.
        self.ended = true;
        self.relay();
    }

    /// Returns what to poll: the worker's pipe if no bytes are pending, otherwise standard error.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        if self.pending.is_empty() {
            PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)
        } else {
            PollFd::new(self.stderr.as_fd(), PollFlags::POLLOUT)
        }
    }

    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            self.line.push(byte);
        }
        if byte == b'\n' || self.line.len() == MAX_LINE {
            self.pending.extend_from_slice(self.prefix.as_bytes());
            self.pending.append(&mut self.line);
            self.pending.push(b'\n');
        }
    }

    fn end_line(&mut self) {
        if !self.line.is_empty() {
            self.take(b'\n');
        }
    }

    /// Writes pending bytes as whole lines, so that the lines of several workers do not mix.
    fn write_pending(&mut self) {
        while !self.pending.is_empty() && is_writable(self.stderr.as_fd()) {
            let most = &self.pending[..self.pending.len().min(ATOMIC_WRITE)];
            let lines = most.iter().rposition(|&byte| byte == b'\n').map_or(most.len(), |last| last + 1);
            match write(self.stderr.as_fd(), &most[..lines]) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // Standard error has no reader any more.
                Err(_) => self.pending.clear(),
            }
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
