//! Functions that cross a process boundary because they have no bytes.

use std::{marker::PhantomData, ptr::NonNull};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::attach;

/// A function or non-capturing closure: its type says everything, so another process running the same program can make it
/// from nothing.
///
/// A closure that captures something does not compile here:
///
/// ```compile_fail
/// let offset = 3u32;
/// let add = loader_ipc::ZeroSized::new(move |x: u32| x + offset);
/// # let _ = add;
/// ```
#[derive(Debug)]
pub struct ZeroSized<F>(PhantomData<fn() -> F>);

impl<F: Copy> ZeroSized<F> {
    /// Remembers the type of `function`.
    pub fn new(function: F) -> Self {
        const {
            assert!(
                size_of::<F>() == 0,
                "the closure captures something; pass it through the dataset instead"
            )
        }
        let _ = function;
        Self(PhantomData)
    }

    /// The function.
    pub fn get(&self) -> F {
        const {
            assert!(
                size_of::<F>() == 0,
                "the closure captures something; pass it through the dataset instead"
            )
        }
        // SAFETY: (1) `F` has no bytes, so reading it reads no memory and any aligned address will do. (2) `F` is `Copy`, so it has no `Drop` and
        // one more value of it changes nothing. (3) `F` is inhabited: a `ZeroSized<F>` comes from `new`, which was given a
        // value, or was decoded from what a process of the same types encoded, which had one (guarded by the build id or the
        // names of the types, and by `Deserialize` below).
        unsafe { NonNull::<F>::dangling().read() }
    }
}

impl<F> Clone for ZeroSized<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for ZeroSized<F> {}

impl<F> Serialize for ZeroSized<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de, F> Deserialize<'de> for ZeroSized<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        // A type alone must not be enough to make a value of it: only what another process of the same build encoded counts.
        if !attach::is_taking() {
            return Err(D::Error::custom(
                "a function is only decoded in a worker, from what its main program sent",
            ));
        }
        Ok(Self(PhantomData))
    }
}
