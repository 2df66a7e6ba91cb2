//! Reads every file of a stream, also after one that cannot be read to its end.

use loader_core::{EndsShard, IterableDataset, SampleContext, Shard};
use loader_data::DataError;
use serde::{Deserialize, Serialize};

/// A stream that goes on after a file that cannot be read to its end, which then is one bad sample. A run of training
/// must not go on: its state would count the lost samples as loaded. The command has no state, and lists such files.
#[derive(Serialize, Deserialize)]
pub(super) struct EveryFile<D>(pub(super) D);

impl<D: IterableDataset> IterableDataset for EveryFile<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(self.0.iter(shard, cx)?.map(|item| item.map_err(of_one_file)))
    }

    fn len(&self) -> Option<usize> {
        self.0.len()
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn layers(&self) -> u8 {
        self.0.layers()
    }
}

/// Returns `error` without the mark that ends the shard, unless other files cannot be read either.
fn of_one_file(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<DataError>() {
        Ok(error) => EndsShard::on_outage(error.into()),
        Err(error) => error,
    }
}
