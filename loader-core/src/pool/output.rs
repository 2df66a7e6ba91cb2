//! What workers print, line by line, with a prefix that says who.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Longest line that is kept together.
const LONGEST_LINE: usize = 64 * 1024;

/// One worker's output, on its way to this process's standard error.
#[derive(Debug)]
pub(super) struct Output {
    prefix: String,
    pipe: io::PipeReader,
    line: Vec<u8>,
}

impl Output {
    /// A pipe: what to read from, and the end that becomes the worker's standard output and error.
    pub(super) fn pipe(worker: usize) -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        make_nonblocking(&reader)?;
        let prefix = format!("[worker {worker}] ");
        Ok((Self { prefix, pipe: reader, line: Vec::new() }, writer.into()))
    }

    /// Passes on what there is, without waiting for more. False at the end.
    pub(super) fn relay(&mut self) -> bool {
        let mut bytes = [0; 8 * 1024];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => {
                    self.flush();
                    return false;
                }
                Ok(count) => bytes[..count].iter().for_each(|&byte| self.take(byte)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Passes on the rest of a line that has no end.
    pub(super) fn flush(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let line = [self.prefix.as_bytes(), &self.line, b"\n"].concat();
        self.line.clear();
        // One write, so that lines of several workers do not mix. If nobody reads standard error, the line is lost.
        drop(io::stderr().write_all(&line));
    }

    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            self.line.push(byte);
        }
        if byte == b'\n' || self.line.len() == LONGEST_LINE {
            self.flush();
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

fn make_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}
