//! Reads every file of a stream, also after one that cannot be read to its end, and notes keys that come again.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use loader_core::{EndsShard, IterableDataset, SampleContext, Shard, pass_on_to_inner};
use loader_data::{DataError, Record, Value};
use serde::{Deserialize, Serialize};

use super::statistics::{self, Statistics};

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

/// A stream of the statistics of records. They tell how many records of an archive have the key of an earlier one.
#[derive(Serialize, Deserialize)]
pub(super) struct Described<D> {
    pub(super) dataset: EveryFile<D>,
}

impl<D: IterableDataset<Sample = Record>> IterableDataset for Described<D> {
    type Sample = Statistics;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Statistics>> + Send> {
        let mut keys = Keys::default();
        let describe = move |record: anyhow::Result<Record>| {
            let record = record?;
            let mut statistics = statistics::of_records::of_record(&record);
            if let Some(key) = keys.repeated(&record) {
                statistics.add_repeated_key(key);
            }
            Ok(statistics)
        };
        Ok(self.dataset.iter(shard, cx)?.map(describe))
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    pass_on_to_inner!(adds_layers: 0);

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }
}

/// The keys of the archive that is being read.
#[derive(Default)]
struct Keys {
    archive: String,
    /// Hashes of the keys, because an archive may have very many.
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl Keys {
    /// Returns the key and the archive of `record` if an earlier record of the archive had this key.
    fn repeated(&mut self, record: &Record) -> Option<String> {
        let (Some(Value::Text(key)), Some(Value::Text(archive))) =
            (record.get("__key__"), record.get("__url__"))
        else {
            return None;
        };
        if *archive != self.archive {
            self.archive.clone_from(archive);
            self.seen.clear();
        }
        let is_new = self.seen.insert(self.hasher.hash_one(key));
        (!is_new).then(|| format!("`{key}` in `{archive}`"))
    }
}
