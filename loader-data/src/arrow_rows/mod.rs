//! Rows of Arrow arrays, which the formats of tables share: the types of columns, and records from their values.

mod batch;
mod cells;
mod kind;

use kind::number_type;

pub(crate) use batch::{Batch, Samples};
pub(crate) use cells::Cells;
pub(crate) use kind::{Kind, check_same, selected};
