//! `overhead`: the cost of a batch with almost no content: 64 integers.

use crate::{
    datasets::Integers,
    options::Options,
    throughput::{self, ends},
};

const BATCHES: usize = 20_000;
/// Number of batches in the checksum.
const CHECKED: usize = 64;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    throughput::measure(
        options,
        options.batches.unwrap_or(BATCHES),
        CHECKED,
        |count| Ok(Integers { count }),
        |batch| ends(batch).map(|number| number as f64).sum(),
        i64::cast_unsigned,
    )
}
