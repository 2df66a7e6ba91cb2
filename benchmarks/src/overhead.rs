//! 64 integers a batch: what a batch costs when there is nothing in it.

use crate::{datasets::Integers, options::Options, throughput};

const BATCHES: usize = 20_000;
const CHECKED: usize = 64;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    throughput::measure(
        options,
        options.batches.unwrap_or(BATCHES),
        CHECKED,
        |count| Ok(Integers { count }),
        |batch| {
            let numbers = batch.as_slice();
            (numbers[0] + numbers[numbers.len() - 1]) as f64
        },
        |number: i64| number.cast_unsigned(),
    )
}
