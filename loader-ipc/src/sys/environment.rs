//! Sets an environment variable during a call.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
};

/// Runs `call` while the variable `name` is `value`. `call` must not start a thread. In a process with
/// several threads, returns `None` without running `call`.
pub(crate) fn with_variable<R>(name: &str, value: &OsStr, call: impl FnOnce() -> R) -> Option<R> {
    if !is_only_thread() {
        return None;
    }
    let _restore = Restore { name, previous: env::var_os(name) };
    // SAFETY: no other thread exists that could use the environment, and `call` starts none before the
    // variable is restored.
    unsafe { env::set_var(name, value) };
    Some(call())
}

/// Restores the variable on drop, also after a panic.
struct Restore<'a> {
    name: &'a str,
    previous: Option<OsString>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        match self.previous.take() {
            // SAFETY: `with_variable` made this value in a process without other threads, and `call` has
            // started none.
            Some(previous) => unsafe { env::set_var(self.name, previous) },
            // SAFETY: as for `Some`.
            None => unsafe { env::remove_var(self.name) },
        }
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
