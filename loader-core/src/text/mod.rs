//! Texts for users.

pub(crate) mod config_line;
pub(crate) mod printable;
