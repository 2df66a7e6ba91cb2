//! 64 x 3 x 224 x 224 floats a batch (38.5 MB): what its bytes cost.

use crate::{
    datasets::Images,
    options::{Options, Read},
    throughput,
};

const BATCHES: usize = 300;
const CHECKED: usize = 3;
/// Elements in a page of memory.
pub(crate) const PAGE: usize = 1024;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let read = options.read;
    throughput::measure(
        options,
        options.batches.unwrap_or(BATCHES),
        CHECKED,
        Images::new,
        |batch| {
            let elements = batch.as_slice();
            let sum: f32 = match read {
                Read::Ends => elements[0] + elements[elements.len() - 1],
                Read::Pages => elements.iter().step_by(PAGE).sum(),
            };
            f64::from(sum)
        },
        |number: f32| u64::from(number.to_bits()),
    )
}
