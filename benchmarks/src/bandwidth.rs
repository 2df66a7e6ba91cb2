//! `bandwidth`: the cost of the bytes of a batch of 64 x 3 x 224 x 224 floats (38.5 MB), or of smaller
//! samples.

use loader_core::Element;

use crate::{
    datasets::Same,
    options::{Dtype, Options, Read, Shape},
    throughput::{self, ends},
};

/// Number of batches in the checksum.
const CHECKED: usize = 3;
const PAGE_BYTES: usize = 4096;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match options.dtype {
        Dtype::F32 => measure(options, quarter, |element| u64::from(element.to_bits())),
        // 251 is prime, so neither rows nor pages repeat.
        Dtype::U8 => measure(options, |position| (position % 251) as u8, u64::from),
    }
}

/// Returns a number that is exact in `f32` and differs from position to position.
pub(crate) fn quarter(position: usize) -> f32 {
    position as f32 / 4.0
}

/// Returns one element of every page of memory.
pub(crate) fn of_every_page<T: Element>(elements: &[T]) -> impl Iterator<Item = T> {
    elements.iter().step_by(PAGE_BYTES / size_of::<T>()).copied()
}

fn measure<T>(options: &Options, element: fn(usize) -> T, bits: fn(T) -> u64) -> anyhow::Result<()>
where
    T: Element + Into<f64>,
{
    throughput::measure(
        options,
        options.batches.unwrap_or(batches(options.sample)),
        CHECKED,
        |count| Same::new(count, options.sample, element),
        |batch| match options.read {
            Read::Ends => ends(batch).map(Into::into).sum(),
            Read::Pages => of_every_page(batch.as_slice()).map(Into::into).sum(),
        },
        bits,
    )
}

/// Returns the number of batches that the loader loads in about half a second.
fn batches(sample: Shape) -> usize {
    match sample {
        Shape::Image => 300,
        Shape::Row => 5_000,
        Shape::ShortRow => 20_000,
    }
}
