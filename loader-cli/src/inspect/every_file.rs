//! Reads every file of a stream, also after one that cannot be read to its end.

use loader_core::{EndsShard, IterableDataset, SampleContext, Shard, pass_on_to_inner};
use loader_data::DataError;
use serde::{Deserialize, Serialize};

/// A stream that goes on after a file that cannot be read to its end, which then is one bad sample. A run of training
/// must not go on: its state would count the lost samples as loaded. The command has no state, and lists such files.
#[derive(Serialize, Deserialize)]
pub(super) struct EveryFile<D> {
    pub(super) dataset: D,
}

impl<D: IterableDataset> IterableDataset for EveryFile<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(self.dataset.iter(shard, cx)?.map(|item| item.map_err(of_one_file)))
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    pass_on_to_inner!(adds_layers: 0);

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }
}

/// Returns `error` without the mark that ends the shard, unless other files cannot be read either.
fn of_one_file(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<DataError>() {
        Ok(error) => EndsShard::on_outage(error.into()),
        Err(error) => error,
    }
}
