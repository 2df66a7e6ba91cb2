//! Texts for users.

pub(crate) mod config_line;
pub(crate) mod print;
pub(crate) mod printable;
