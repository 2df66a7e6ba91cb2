//! Hashes that show whether two runs loaded the same batches.

use loader_ipc::codec;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use crate::data::sample_digest::HashWriter;

/// Two hashes of batches in their order: one of their indices, one of their content after collation. Two runs
/// that load the same batches have the same digest, with any number of workers. Both hashes are xxh3 with 64
/// bits: they detect mistakes, not forgery. To compare runs whose batches differ, such as those of ranks, use
/// a [`SampleDigest`](crate::SampleDigest).
///
/// The entries of a `HashMap` in a batch have no fixed order, so its digest differs between runs. Use a
/// `BTreeMap`.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Numbers;
/// # impl Dataset for Numbers {
/// #     type Sample = u64;
/// #     fn len(&self) -> usize { 10 }
/// #     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> { Ok(index as u64) }
/// # }
/// let loader = DataLoader::builder(Numbers).batch_size(4).build()?;
/// let mut digest = BatchDigest::new();
/// let mut batches = loader.epoch(0)?;
/// while let Some(batch) = batches.next() {
///     digest.add(&batches.last_batch().unwrap().indices, &batch?);
/// }
/// println!("{:016x} {:016x}", digest.order(), digest.content());
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Default)]
pub struct BatchDigest {
    order: Xxh3,
    content: Xxh3,
}

impl BatchDigest {
    /// Creates a digest of no batches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: its indices, and its content including the shapes and dtypes of its tensors.
    pub fn add<B: Serialize>(&mut self, indices: &[usize], batch: &B) {
        self.order.update(&(indices.len() as u64).to_le_bytes());
        for &index in indices {
            self.order.update(&(index as u64).to_le_bytes());
        }
        // Hashing cannot fail, and a batch from a worker has been encoded once already. An error here means
        // that the batch's `Serialize` fails in the main process; its message is hashed instead of the
        // content.
        if let Err(error) = codec::encode_into(HashWriter(&mut self.content), batch) {
            self.content.update(error.to_string().as_bytes());
        }
    }

    /// Returns the hash of the order.
    pub fn order(&self) -> u64 {
        self.order.digest()
    }

    /// Returns the hash of the content.
    pub fn content(&self) -> u64 {
        self.content.digest()
    }
}

impl std::fmt::Debug for BatchDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BatchDigest {{ order: {:016x}, content: {:016x} }}", self.order(), self.content())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    fn digests_depend_on_order_and_shape() {
        let digest = |indices: &[usize], tensor: &Tensor<u8>| {
            let mut digest = BatchDigest::new();
            digest.add(indices, tensor);
            (digest.order(), digest.content())
        };
        let flat = Tensor::from_slice(&[1u8, 2, 3, 4], [4]).unwrap();
        let square = flat.reshape([2, 2]).unwrap();
        assert_eq!(digest(&[0, 1], &flat), digest(&[0, 1], &flat.clone()));
        assert_ne!(digest(&[0, 1], &flat).0, digest(&[1, 0], &flat).0);
        assert_ne!(digest(&[0, 1], &flat).1, digest(&[0, 1], &square).1);
    }
}
