//! Sets an environment variable for the time of a call.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
};

/// Runs `call` while the variable `name` is `value`. In a process with several threads, returns `None`
/// without running `call`.
pub(crate) fn with_variable<R>(name: &str, value: &OsStr, call: impl FnOnce() -> R) -> Option<R> {
    if !is_only_thread() {
        return None;
    }
    let _restore = Restore { name, before: env::var_os(name) };
    // SAFETY: no other thread exists that could use the environment meanwhile, and `call` starts none before this returns.
    unsafe { env::set_var(name, value) };
    Some(call())
}

/// Sets the variable back, also after a panic.
struct Restore<'a> {
    name: &'a str,
    before: Option<OsString>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        match self.before.take() {
            // SAFETY: made by `with_variable`, in a process without other threads.
            Some(before) => unsafe { env::set_var(self.name, before) },
            // SAFETY: as above.
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
    fn nothing_is_changed_where_other_threads_are() {
        let (end, ended) = mpsc::channel::<()>();
        let other = thread::spawn(move || ended.recv().is_ok());
        assert!(!is_only_thread());
        assert_eq!(with_variable("LOADER_TEST_VARIABLE", OsStr::new("x"), || ()), None);
        drop(end);
        assert!(!other.join().unwrap());
    }
}
