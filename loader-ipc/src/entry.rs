//! The address of a function as another process running the same program can use it.
//!
//! Programs are loaded at a random address, so a function travels as its distance from an anchor in the same program. The
//! distance means the same function only in the same build, which is why an [`Entry`] carries the build id and is refused
//! elsewhere. (procspawn does the same.)
#![allow(unsafe_code)]

use std::any::type_name;

use serde::{Deserialize, Serialize};

use crate::build_id::BuildId;

/// A function pointer that crosses to another process of the same build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    distance: i64,
    signature: String,
    build: BuildId,
}

/// Why an [`Entry`] cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// It is of another build.
    #[error("the entry is of build {theirs}, this program is build {ours}")]
    OtherBuild {
        /// This program's build.
        ours: BuildId,
        /// The build that the entry was made in.
        theirs: BuildId,
    },
    /// It is of another type.
    #[error("the entry is a `{theirs}`, wanted is a `{ours}`")]
    OtherSignature {
        /// Type asked for.
        ours: &'static str,
        /// Type it has.
        theirs: String,
    },
}

impl Entry {
    /// The entry for `function`.
    pub fn of<A, R>(function: fn(A) -> R) -> Self {
        Self {
            distance: (function as usize as i64).wrapping_sub(anchor as fn() as usize as i64),
            signature: type_name::<fn(A) -> R>().to_owned(),
            build: BuildId::of_this_program().clone(),
        }
    }

    /// The build it was made in.
    pub fn build(&self) -> &BuildId {
        &self.build
    }

    /// The function.
    ///
    /// # Errors
    /// [`EntryError`] when it was made in another build, or for a function of another type.
    pub fn resolve<A, R>(&self) -> Result<fn(A) -> R, EntryError> {
        let (ours, theirs) = (BuildId::of_this_program(), &self.build);
        if ours != theirs {
            return Err(EntryError::OtherBuild { ours: ours.clone(), theirs: theirs.clone() });
        }
        let ours = type_name::<fn(A) -> R>();
        if ours != self.signature {
            return Err(EntryError::OtherSignature { ours, theirs: self.signature.clone() });
        }
        let address = (anchor as fn() as usize as i64).wrapping_add(self.distance) as usize;
        // SAFETY: `distance` is private and made by `of`, here or in the process that sent the bootstrap: our own main, over an
        // inherited socket (that is what decoding an `Entry` relies on, and why this crate is internal). In the same build the
        // distance of two functions of one program is the same in every process; the signature was compared.
        Ok(unsafe { std::mem::transmute::<usize, fn(A) -> R>(address) })
    }
}

#[inline(never)]
fn anchor() {
    std::hint::black_box(());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<T>(count: usize) -> String {
        type_name::<T>().repeat(count)
    }

    #[test]
    fn a_generic_function_comes_back() {
        let entry = Entry::of(name::<u8>);
        let function = entry.resolve::<usize, String>().unwrap();
        assert_eq!(function(2), "u8u8");
        assert_eq!(Entry::of(name::<i64>).resolve::<usize, String>().unwrap()(1), "i64");
    }

    #[test]
    fn another_signature_or_build_is_refused() {
        let mut entry = Entry::of(name::<u8>);
        assert!(matches!(entry.resolve::<u8, String>(), Err(EntryError::OtherSignature { .. })));
        entry.build = crate::codec::decode(&crate::codec::encode(&vec![1u8, 2]).unwrap()).unwrap();
        let error = entry.resolve::<usize, String>().unwrap_err();
        assert!(error.to_string().contains("0102"), "{error}");
    }
}
