//! Errors that do not stand where their samples would stand.

use std::fmt;

use super::EndsShard;

/// Context of the error of an item that a dataset has read from its inner stream. Without the error, the sample
/// would stand at another place of the result, or nowhere, so all later items of the result would be others. The
/// error of a function given to `map` has no such context, because it stands where the sample would stand.
///
/// The number is the position of the item in the inner stream. If streams are nested, it is the innermost one
/// whose error changes which items follow.
#[derive(Debug)]
pub struct OutOfPlace(pub(crate) u64);

impl OutOfPlace {
    /// Adds the context to `error`, unless it has one or ends the shard.
    pub fn mark(error: anyhow::Error, position: u64) -> anyhow::Error {
        if error.is::<Self>() || error.is::<EndsShard>() { error } else { error.context(Self(position)) }
    }

    /// Returns the position in the context of `error`; `None` without this context.
    pub(crate) fn position(error: &anyhow::Error) -> Option<u64> {
        error.downcast_ref::<Self>().map(|Self(position)| *position)
    }
}

impl fmt::Display for OutOfPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {} of the inner stream", self.0)
    }
}
