//! Sets an environment variable during a call.

use std::{
    env,
    ffi::{CString, OsStr},
    fs,
    os::unix::ffi::OsStrExt,
};

use nix::libc;

/// Runs `call` while the variable `name` is `value`. `call` must not start a thread. Returns `None` without running
/// `call` in a process with several threads, and if the name or the value contains a zero byte.
///
/// Alternative considered: `env::set_var`. Rejected because this process may be a fork of a program with several
/// threads. If one of them was reading the environment at that moment, the lock of `std` stays locked here, and
/// `set_var` would wait without end.
pub(crate) fn with_variable<R>(name: &str, value: &OsStr, call: impl FnOnce() -> R) -> Option<R> {
    if !is_only_thread() {
        return None;
    }
    let value = CString::new(value.as_bytes()).ok()?;
    let previous = env::var_os(name).and_then(|previous| CString::new(previous.into_encoded_bytes()).ok());
    let restore = Restore { name: CString::new(name).ok()?, previous };
    // SAFETY: both are texts that outlive the call, which copies them. No other thread exists that could use the
    // environment, and `call` starts none before the variable is restored.
    unsafe { libc::setenv(restore.name.as_ptr(), value.as_ptr(), 1) };
    Some(call())
}

/// Restores the variable on drop, also after a panic.
struct Restore {
    name: CString,
    previous: Option<CString>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        match &self.previous {
            // SAFETY: as for the call in `with_variable`, which has made this value.
            Some(previous) => unsafe { libc::setenv(self.name.as_ptr(), previous.as_ptr(), 1) },
            // SAFETY: as above.
            None => unsafe { libc::unsetenv(self.name.as_ptr()) },
        };
    }
}

fn is_only_thread() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn nothing_is_changed_if_other_threads_exist() {
        let (end, ended) = mpsc::channel::<()>();
        let other = thread::spawn(move || ended.recv().is_ok());
        assert!(!is_only_thread());
        assert_eq!(with_variable("LOADER_TEST_VARIABLE", OsStr::new("x"), || ()), None);
        drop(end);
        assert!(!other.join().unwrap());
    }
}
