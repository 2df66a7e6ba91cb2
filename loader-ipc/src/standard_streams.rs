//! The standard streams of this process.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, IntoRawFd},
};

use rustix::io::{FdFlags, fcntl_setfd};

/// Opens `/dev/null` in the place of each standard stream that is closed. Otherwise the loader's next descriptor
/// would get the number of the stream, and what a C library prints would go into the loader's socket or memory.
/// Rust does the same before `main`, but Python does not, and a program may close its streams later.
///
/// # Errors
/// If this process is out of descriptors.
pub fn open_closed_streams() -> io::Result<()> {
    loop {
        // The system gives a new file the lowest number that is free. Some containers have no `/dev/null`.
        let null =
            OpenOptions::new().read(true).write(true).open("/dev/null").or_else(|_| File::open("/"))?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        // The programs that this process starts inherit the stream.
        fcntl_setfd(&null, FdFlags::empty())?;
        let _ = null.into_raw_fd();
    }
}
