//! Python objects that several Rust values share.
//!
//! An engine and its iterator reach Python objects through types of `loader-core`, which Python's garbage collector
//! does not know. An object of the program that holds its own iterator, such as a sampler, would then never be
//! collected, and its workers would not end. So `__traverse__` of [`Engine`](crate::engine::Engine) visits these
//! objects. The collector breaks such a cycle at the attributes of the Python objects in it, so nothing here needs
//! `__clear__`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::{PyTraverseError, PyVisit, prelude::*};

/// A Python object with one reference, which several Rust values share.
///
/// It is locked only with the interpreter's lock, and no Python code runs meanwhile. The collector has the
/// interpreter's lock too, so it sees the same object each time that it looks.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedObject(Arc<Mutex<Option<Py<PyAny>>>>);

impl SharedObject {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Arc::new(Mutex::new(Some(object))))
    }

    /// Returns the object; `None` once it was dropped.
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        lock(&self.0).as_ref().map(|object| object.bind(py).clone())
    }

    /// Replaces the object. The one before is dropped after the lock, because its end may run Python code.
    pub(crate) fn set(&self, _py: Python<'_>, object: Py<PyAny>) {
        let before = lock(&self.0).replace(object);
        drop(before);
    }

    /// Keeps the object, unless there is one. The object that is not needed is dropped after the lock.
    pub(crate) fn set_first(&self, _py: Python<'_>, object: Py<PyAny>) {
        let mut held = lock(&self.0);
        let unneeded = match &*held {
            None => held.replace(object),
            Some(_) => Some(object),
        };
        drop(held);
        drop(unneeded);
    }

    /// Takes the object out.
    pub(crate) fn take(&self, _py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.0).take()
    }

    /// Drops the object, after the lock, because its end may run Python code.
    pub(crate) fn clear(&self, py: Python<'_>) {
        drop(self.take(py));
    }

    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&*lock(&self.0))
    }
}

/// The object that was made last, of those that are made one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatestObject(Arc<Mutex<SharedObject>>);

impl LatestObject {
    /// Replaces the object. The one before is dropped with its other owners.
    pub(crate) fn set(&self, _py: Python<'_>, held: &SharedObject) {
        let before = std::mem::replace(&mut *lock(&self.0), held.clone());
        drop(before);
    }

    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        lock(&self.0).visit(visit)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
