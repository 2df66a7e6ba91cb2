//! Token files.

mod megatron;
mod raw;
mod records;

use std::path::{Path, PathBuf};

use loader_core::{Dataset, SampleContext};

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tokens")).join(name)
}

/// The sequence that `write.py` writes.
fn written(count: usize) -> Vec<i64> {
    (0..count as u64).map(|number| (number * 40_503 % 50_257) as i64).collect()
}

fn all<D: Dataset>(dataset: &D) -> Vec<D::Sample> {
    let cx = &mut SampleContext::new(0);
    (0..dataset.len()).map(|index| dataset.get(index, cx).unwrap()).collect()
}

/// The windows of `tokens`.
fn windows(tokens: &[i64], window: usize, stride: usize) -> Vec<Vec<i64>> {
    tokens.windows(window).step_by(stride).map(<[i64]>::to_vec).collect()
}
