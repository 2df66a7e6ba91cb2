//! Sends functions to another process that runs the same code.
//!
//! The system loads programs at random addresses, so a function is sent as its distance from an anchor in the
//! same loaded object (the program, or a shared library). A distance means the same function only in the same
//! build of that object, so [`Entries`] carry its build id, and other builds refuse them. (procspawn does the
//! same.)
//!
//! Safe code cannot make a function from bytes alone. A [`Function`](crate::function::Function) is encoded as
//! a number in a table ([`attach`](crate::attach)). The table is sent beside the value, and gives a function
//! only as its exact type.
//!
//! Alternative considered: to send the type of a zero-sized closure and to make a value of it in the worker,
//! with a check that main had one. Rejected because a closure may capture a zero-sized token that is valid in
//! one process only, because the check that nothing is captured can only be made after `cargo check`, and
//! because it excludes `fn` pointers. Its advantage, a direct call, saves about a nanosecond per sample.
#![allow(unsafe_code)]

use std::{any::TypeId, marker::PhantomData, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    build_id::{BuildId, anchor_address},
    sys::LoadedObject,
};

/// Tag type that stands for a type of function pointers. (A trait for the pointer types themselves would have
/// overlapping implementations: `fn(A)` and `for<'a> fn(&'a A)`.)
pub trait Signature: sealed::Erase + 'static {}

mod sealed {
    /// Converts between function pointers of one type and untyped ones. Implemented only in this file.
    pub trait Erase {
        type Pointer: Copy + Send + Sync + 'static;

        fn erase(pointer: Self::Pointer) -> fn();

        /// # Safety
        /// `erased` comes from [`erase`](Self::erase) of the same `Self`, in this process or in another
        /// process of the same build.
        unsafe fn restore(erased: fn()) -> Self::Pointer;
    }
}

macro_rules! signatures {
    ($($(#[$doc:meta])* $name:ident<$($generic:ident),*> = $pointer:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name<$($generic),*>(PhantomData<fn($($generic),*)>);

            impl<$($generic: 'static),*> Signature for $name<$($generic),*> {}

            impl<$($generic: 'static),*> sealed::Erase for $name<$($generic),*> {
                type Pointer = $pointer;

                fn erase(pointer: $pointer) -> fn() {
                    // SAFETY: all function pointers have the same size and are never null. The result is
                    // never called as `fn()`.
                    unsafe { std::mem::transmute::<$pointer, fn()>(pointer) }
                }

                unsafe fn restore(erased: fn()) -> $pointer {
                    // SAFETY: the caller promises that the pointer had this type before `erase`.
                    unsafe { std::mem::transmute::<fn(), $pointer>(erased) }
                }
            }
        )*
    };
}

signatures! {
    /// `fn(A) -> R`.
    Owned<A, R> = fn(A) -> R;
    /// `fn(A, &mut B) -> R`.
    OwnedMut<A, B, R> = fn(A, &mut B) -> R;
    /// `fn(&A) -> R`.
    Shared<A, R> = fn(&A) -> R;
    /// `fn(&A, &mut B) -> R`.
    SharedMut<A, B, R> = fn(&A, &mut B) -> R;
    /// `fn(&A, B) -> R`.
    SharedOwned<A, B, R> = fn(&A, B) -> R;
    /// `fn(&A, B, &mut C) -> R`.
    SharedOwnedMut<A, B, C, R> = fn(&A, B, &mut C) -> R;
    /// `fn(&A, &B) -> R`.
    SharedShared<A, B, R> = fn(&A, &B) -> R;
    /// `fn(&A, &B, &mut C) -> R`.
    SharedSharedMut<A, B, C, R> = fn(&A, &B, &mut C) -> R;
}

/// A function pointer whose type is checked at run time.
#[derive(Debug, Clone, Copy)]
pub struct AnyFunction {
    erased: fn(),
    /// Returns the id of the pointer's [`Signature`]. A function, because a [`TypeId`] cannot be sent to
    /// another process.
    signature: fn() -> TypeId,
}

impl AnyFunction {
    /// Wraps a pointer of the type that `G` stands for.
    pub fn new<G: Signature>(pointer: G::Pointer) -> Self {
        Self { erased: G::erase(pointer), signature: TypeId::of::<G> }
    }

    /// Returns the pointer if it has the type that `G` stands for.
    pub fn get<G: Signature>(self) -> Option<G::Pointer> {
        if (self.signature)() != TypeId::of::<G>() {
            return None;
        }
        // SAFETY: both fields are private. They come from `new`, which got a pointer of the type that
        // `signature` names, or from `Entries::resolve`, which gets the distances of two such fields in the
        // same build.
        Some(unsafe { G::restore(self.erased) })
    }

    /// True if both are the same function of the same type.
    pub fn is_same(self, other: Self) -> bool {
        self.erased as usize == other.erased as usize && (self.signature)() == (other.signature)()
    }
}

/// Functions in a form that can be sent to another process of the same build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    build: BuildId,
    /// The distances of `erased` and `signature` of each function from the anchor, in bytes.
    distances: Vec<(i64, i64)>,
}

/// Reasons why functions cannot be sent, or cannot be used in this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The functions come from another build.
    #[error("the functions are of build {theirs}, this program is build {ours}")]
    OtherBuild {
        /// This program's build.
        ours: BuildId,
        /// The build that sent the functions.
        theirs: BuildId,
    },
    /// The function and the loader are in different loaded objects.
    #[error(
        "the function is in {}, the loader in {}; link both into one file, because a worker may load two files at other distances",
        name(theirs.as_deref()), name(ours.as_deref())
    )]
    OtherObject {
        /// The file that contains the loader's code.
        ours: Option<PathBuf>,
        /// The file that contains the function.
        theirs: Option<PathBuf>,
    },
    /// The file with the loader's code has no build id, so other builds of it cannot be detected.
    #[error("{} has no build id; link it with `-C link-arg=-Wl,--build-id`", name(object.as_deref()))]
    NoBuildId {
        /// The file.
        object: Option<PathBuf>,
    },
}

fn name(object: Option<&std::path::Path>) -> String {
    object.map_or_else(|| "no loaded file".to_owned(), |path| path.display().to_string())
}

impl Entries {
    /// Records the distances of `functions` from the anchor.
    ///
    /// # Errors
    /// [`EntryError::OtherObject`] if a function is in another loaded object than this code,
    /// [`EntryError::NoBuildId`] if this code's build cannot be identified.
    pub fn of(functions: &[AnyFunction]) -> Result<Self, EntryError> {
        let own = LoadedObject::containing(anchor_address());
        let path = |object: &Option<LoadedObject>| object.as_ref().map(|object| object.path().to_owned());
        let distance = |address: usize| {
            let theirs = LoadedObject::containing(address);
            if own.is_some() && theirs == own {
                Ok((address as i64).wrapping_sub(anchor_address() as i64))
            } else {
                Err(EntryError::OtherObject { ours: path(&own), theirs: path(&theirs) })
            }
        };
        let distances = functions
            .iter()
            .map(|function| Ok((distance(function.erased as usize)?, distance(function.signature as usize)?)))
            .collect::<Result<_, _>>()?;
        let build = BuildId::of_this_code().cloned();
        Ok(Self { build: build.ok_or_else(|| EntryError::NoBuildId { object: path(&own) })?, distances })
    }

    /// Returns the functions in this process.
    ///
    /// # Errors
    /// [`EntryError::OtherBuild`] if they come from another build than this code, [`EntryError::NoBuildId`]
    /// if this code's build cannot be identified.
    pub fn resolve(&self) -> Result<Vec<AnyFunction>, EntryError> {
        let own = || LoadedObject::containing(anchor_address()).map(|object| object.path().to_owned());
        let ours = BuildId::of_this_code().ok_or_else(|| EntryError::NoBuildId { object: own() })?;
        if *ours != self.build {
            return Err(EntryError::OtherBuild { ours: ours.clone(), theirs: self.build.clone() });
        }
        let address = |distance: i64| (anchor_address() as i64).wrapping_add(distance) as usize;
        let function = |&(erased, signature): &(i64, i64)| {
            // SAFETY: `distances` is private, and `of` computed it, in this process or in the one that sent
            // the bootstrap. That is this worker's main, over an inherited socket: decoding `Entries` relies
            // on this, which is why this crate is internal. `of` has checked that the function is in the same
            // loaded object as the anchor, and the distance of two functions is the same in every process
            // that runs the same build of that object.
            let erased = unsafe { std::mem::transmute::<usize, fn()>(address(erased)) };
            // SAFETY: as above.
            let signature = unsafe { std::mem::transmute::<usize, fn() -> TypeId>(address(signature)) };
            AnyFunction { erased, signature }
        };
        Ok(self.distances.iter().map(function).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::any::type_name;

    use super::*;

    type Name = Owned<usize, String>;

    fn name_of<T>(count: usize) -> String {
        type_name::<T>().repeat(count)
    }

    #[test]
    fn generic_functions_are_resolved() {
        let functions = [AnyFunction::new::<Name>(name_of::<u8>), AnyFunction::new::<Name>(name_of::<i64>)];
        let back = Entries::of(&functions).unwrap().resolve().unwrap();
        assert_eq!(back[0].get::<Name>().unwrap()(2), "u8u8");
        assert_eq!(back[1].get::<Name>().unwrap()(1), "i64");
        assert!(back[0].is_same(functions[0]) && !back[0].is_same(functions[1]));
    }

    #[test]
    fn a_function_has_only_its_own_type() {
        let function = AnyFunction::new::<Name>(name_of::<u8>);
        assert!(function.get::<Name>().is_some());
        assert!(function.get::<Owned<isize, String>>().is_none());
        assert!(function.get::<Shared<usize, String>>().is_none());
    }

    #[test]
    fn another_build_is_refused() {
        let mut entries = Entries::of(&[AnyFunction::new::<Name>(name_of::<u8>)]).unwrap();
        entries.build = crate::codec::decode(&crate::codec::encode(&vec![1u8, 2]).unwrap()).unwrap();
        let error = entries.resolve().unwrap_err();
        assert!(matches!(error, EntryError::OtherBuild { .. }), "{error:?}");
        assert!(error.to_string().contains("0102"), "{error}");
    }

    #[test]
    fn a_function_of_another_loaded_object_is_refused() {
        let foreign = AnyFunction {
            // SAFETY: a function pointer that is not null and is never called.
            erased: unsafe { std::mem::transmute::<usize, fn()>(nix::libc::getpid as *const () as usize) },
            signature: TypeId::of::<Name>,
        };
        let error = Entries::of(&[foreign]).unwrap_err();
        let EntryError::OtherObject { ours: Some(ours), theirs: Some(theirs) } = &error else {
            panic!("{error}")
        };
        assert_eq!(ours, &std::env::current_exe().unwrap());
        assert!(theirs.to_string_lossy().contains("libc"), "{error}");
    }
}
