//! The encoding of a dataset for workers.

use loader_ipc::attach::{self, AttachError, Attached};

use crate::{
    data::{collate::Collate, fetch::DatasetKind, worker_init::WorkerInit},
    error::Error,
};

/// The encoding of a dataset, its collation and its `worker_init`, and their decoded copies.
pub(super) struct RoundTrip<K, C, W> {
    /// The encoding, which [`open`](crate::data::fetch::open) decodes in a worker.
    pub(super) bytes: Vec<u8>,
    /// The memories and functions to which `bytes` refers.
    pub(super) attached: Attached,
    /// The decoded copies, which a loader without workers uses.
    pub(super) decoded: (K, C, W),
}

/// Encodes what [`open`](crate::data::fetch::open) decodes in a worker, and decodes it again. If the encoding loses
/// data, it is then missing in the main process too, so a loader without workers gives the same samples as one with
/// workers. Tensors are moved into sealed memory, and the originals are dropped before anything is decoded.
///
/// Alternative considered: compare samples before and after. Rejected because `get` may be expensive or
/// random.
pub(super) fn encode<K, C, W>(kind: K, collate: C, hook: W) -> Result<RoundTrip<K, C, W>, Error>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    let not_encodable = |problem| Error::DatasetNotEncodable { problem };
    let before = kind.samples();
    let original = (kind, collate, hook);
    let encoded = attach::encode(&original);
    drop(original);
    let (bytes, attached) = encoded.map_err(|error| match error {
        AttachError::Memory(source) => {
            Error::System { what: "allocating shared memory for the dataset", source }
        }
        error => not_encodable(error.to_string()),
    })?;
    let decoded = attach::decode(&bytes, attached.clone());
    let decoded: (K, C, W) = decoded.map_err(|error| not_encodable(error.to_string()))?;
    let after = decoded.0.samples();
    if after != before {
        let said =
            |samples: Option<usize>| samples.map_or("no length".to_owned(), |len| format!("{len} samples"));
        let problem = format!("it had {} before encoding and {} after", said(before), said(after));
        return Err(not_encodable(problem));
    }
    Ok(RoundTrip { bytes, attached, decoded })
}
