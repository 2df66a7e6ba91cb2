//! Errors that list the keys of options with flattened fields.

use std::{collections::BTreeMap, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny},
};

/// Options whose keys serde does not list in an error, because some of the fields are flattened.
pub(crate) trait Keys {
    /// Returns the names of all keys.
    fn keys() -> Vec<&'static str>;
}

/// Refuses the keys that no other field takes, with an error that lists the keys of `T`. It is the last field
/// of a struct with flattened fields, where the error of `deny_unknown_fields` lists no keys.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NoOtherKeys<T>(PhantomData<T>);

impl<T> Default for NoOtherKeys<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: Keys> Deserialize<'de> for NoOtherKeys<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // It has the keys that no other field has taken.
        match BTreeMap::<String, IgnoredAny>::deserialize(deserializer)?.into_keys().next() {
            None => Ok(Self::default()),
            Some(key) => {
                let known = T::keys().join("`, `");
                Err(D::Error::custom(format!("unknown field `{key}`, expected one of `{known}`")))
            }
        }
    }
}
