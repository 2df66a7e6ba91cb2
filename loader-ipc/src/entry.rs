//! Functions that cross to another process running the same code.
//!
//! Programs are loaded at a random address, so a function travels as its distance from an anchor in the same loaded object (the
//! program, or a shared library). The distance means the same function only in the same build of that object, so [`Entries`] carry
//! its build id and are refused elsewhere. (procspawn does the same.)
//!
//! Safe code cannot make a function from bytes alone. A [`Function`](crate::function::Function) is encoded as
//! a number in a table ([`attach`](crate::attach)); the table is sent beside the value, and a function can be
//! taken out of it only as its exact type.
//!
//! Alternative considered: sending the type of a zero-sized closure and making a value of it in the worker,
//! with a check that the main process had one. Rejected because a closure may capture a zero-sized token that
//! is valid in one process only, because the check that nothing is captured can only be made after `cargo
//! check`, and because it excludes `fn` pointers. Its advantage, a direct call, saves about a nanosecond per
//! sample.
#![allow(unsafe_code)]

use std::{any::TypeId, marker::PhantomData, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{build_id::BuildId, sys::LoadedObject};

/// The type of a function pointer, as a tag. (A trait for the pointer types themselves would have overlapping implementations:
/// `fn(A)` and `for<'a> fn(&'a A)`.)
pub trait Signature: sealed::Erase + 'static {}

mod sealed {
    /// Conversion to and from function pointers without their type. Implemented in this file only.
    pub trait Erase {
        type Pointer: Copy + Send + Sync + 'static;

        fn erase(pointer: Self::Pointer) -> fn();

        /// # Safety
        /// `erased` comes from [`erase`](Self::erase) of the same `Self`, here or in another process of the same build.
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
                    // SAFETY: all function pointers have the same size and are never null; it is not called as this type.
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

/// A function pointer whose type is known at run time.
#[derive(Debug, Clone, Copy)]
pub struct AnyFunction {
    erased: fn(),
    /// Gives the id of the pointer's [`Signature`]. A function, because an id cannot be sent to another process and a function can.
    signature: fn() -> TypeId,
}

impl AnyFunction {
    /// Leaves out the type of `pointer`.
    pub fn new<G: Signature>(pointer: G::Pointer) -> Self {
        Self { erased: G::erase(pointer), signature: TypeId::of::<G> }
    }

    /// The function, if it has the type that `G` stands for.
    pub fn get<G: Signature>(self) -> Option<G::Pointer> {
        if (self.signature)() != TypeId::of::<G>() {
            return None;
        }
        // SAFETY: both fields are private. They come from `new`, which was given a pointer of the type that `signature` names, or
        // from `Entries::resolve`, which is given the distances of two such fields in the same build.
        Some(unsafe { G::restore(self.erased) })
    }

    /// True when both are one function of one type.
    pub fn is_same(self, other: Self) -> bool {
        self.erased as usize == other.erased as usize && (self.signature)() == (other.signature)()
    }
}

/// Functions that can be sent to another process of the same build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    build: BuildId,
    /// For each function the distances of `erased` and `signature` from the anchor.
    distances: Vec<(i64, i64)>,
}

/// Reasons why functions cannot be sent, or cannot be used in this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The functions are of another build.
    #[error("the functions are of build {theirs}, this program is build {ours}")]
    OtherBuild {
        /// This program's build.
        ours: BuildId,
        /// The build that the functions are of.
        theirs: BuildId,
    },
    /// The function and the loader lie in different loaded objects.
    #[error(
        "the function lies in {}, the loader in {}; they can be at other distances in a worker",
        name(theirs.as_deref()), name(ours.as_deref())
    )]
    OtherObject {
        /// The file that the loader's code is in.
        ours: Option<PathBuf>,
        /// The file that the function is in.
        theirs: Option<PathBuf>,
    },
    /// The file with the loader's code has no build id, so another build of it cannot be recognised.
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
    /// [`EntryError::OtherObject`] when a function lies in another loaded object than this code, [`EntryError::NoBuildId`] when that
    /// object cannot be recognised in another process.
    pub fn of(functions: &[AnyFunction]) -> Result<Self, EntryError> {
        let own = LoadedObject::containing(anchor_address());
        let path = |object: &Option<LoadedObject>| object.as_ref().map(|object| object.path().to_owned());
        let distance = |address: usize| {
            let theirs = LoadedObject::containing(address);
            match own.is_some() && theirs == own {
                true => Ok((address as i64).wrapping_sub(anchor_address() as i64)),
                false => Err(EntryError::OtherObject { ours: path(&own), theirs: path(&theirs) }),
            }
        };
        let distances = functions
            .iter()
            .map(|function| Ok((distance(function.erased as usize)?, distance(function.signature as usize)?)))
            .collect::<Result<_, _>>()?;
        let build = BuildId::of_this_code().cloned();
        Ok(Self { build: build.ok_or_else(|| EntryError::NoBuildId { object: path(&own) })?, distances })
    }

    /// The functions.
    ///
    /// # Errors
    /// [`EntryError::OtherBuild`] when they are of another build than this code.
    pub fn resolve(&self) -> Result<Vec<AnyFunction>, EntryError> {
        let own = LoadedObject::containing(anchor_address()).map(|object| object.path().to_owned());
        let ours = BuildId::of_this_code().ok_or(EntryError::NoBuildId { object: own })?;
        if *ours != self.build {
            return Err(EntryError::OtherBuild { ours: ours.clone(), theirs: self.build.clone() });
        }
        let address = |distance: i64| (anchor_address() as i64).wrapping_add(distance) as usize;
        let function = |&(erased, signature): &(i64, i64)| {
            // SAFETY: `distances` is private and made by `of`, here or in the process that sent the bootstrap: our own main, over an
            // inherited socket (that is what decoding `Entries` relies on, and why this crate is internal). `of` has made sure that
            // the function lies in the same loaded object as the anchor, and in the same build of that object the distance of two
            // functions is the same in every process.
            let erased = unsafe { std::mem::transmute::<usize, fn()>(address(erased)) };
            // SAFETY: the same.
            let signature = unsafe { std::mem::transmute::<usize, fn() -> TypeId>(address(signature)) };
            AnyFunction { erased, signature }
        };
        Ok(self.distances.iter().map(function).collect())
    }
}

/// The anchor: an address in the loaded object that contains this crate's code.
pub(crate) fn anchor_address() -> usize {
    anchor as fn() as usize
}

#[inline(never)]
fn anchor() {
    std::hint::black_box(());
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
    fn a_generic_function_comes_back() {
        let functions = [AnyFunction::new::<Name>(name_of::<u8>), AnyFunction::new::<Name>(name_of::<i64>)];
        let back = Entries::of(&functions).unwrap().resolve().unwrap();
        assert_eq!(back[0].get::<Name>().unwrap()(2), "u8u8");
        assert_eq!(back[1].get::<Name>().unwrap()(1), "i64");
        assert!(back[0].is_same(functions[0]) && !back[0].is_same(functions[1]));
    }

    #[test]
    fn a_function_is_given_as_its_own_type_only() {
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
            // SAFETY: function pointers of the same size; it is never called.
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
