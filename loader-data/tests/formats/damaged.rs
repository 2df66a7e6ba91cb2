//! Streams of files that are damaged: an unknown number of samples is lost, so the epoch does not count as read.

use std::{fs, path::Path};

use loader_core::{
    DataLoader, Error, IterableDataset, OnBadSample, SampleContext, SampleDigest, State, collate::Batch,
};
use loader_data::{Record, RecordConfig, Records};

use crate::everywhere::{watched, write_old};

/// Files of 12 samples or more, and the kinds of their datasets.
const FILES: [(&str, &str); 7] = [
    ("json_lines/pandas.jsonl.gz", "json-lines-stream"),
    ("json_lines/two-frames.jsonl.zst", "json-lines-stream"),
    ("csv/pandas.csv.gz", "csv-stream"),
    ("csv/pandas.csv.zst", "csv-stream"),
    ("tar/gnu.tar", "tar"),
    ("tar/gnu.tar.gz", "tar"),
    ("tar/gnu.tar.zst", "tar"),
];

/// Returns a loader of the files in `folder`, which one shard reads in the order of their names.
fn loader(kind: &str, folder: &Path, with_snapshots: bool) -> DataLoader<Vec<String>> {
    let config = format!(r#"{{"kind": "{kind}", "path": "{}"}}"#, folder.display());
    let config: RecordConfig = serde_json::from_str(&config).unwrap();
    let Records::Stream(stream) = config.open().unwrap() else { panic!("no stream") };
    let show = |mut record: Record, _cx: &mut SampleContext| {
        // The fixtures of tar have the path of the archive in each sample.
        record.remove("__url__");
        Ok(format!("{record:?}"))
    };
    let loader = DataLoader::stream(IterableDataset::map(stream, show)).shards(1).batch_size(2).digest(true);
    let loader = loader.on_bad_sample(OnBadSample::Skip).max_bad_samples(1000);
    if with_snapshots { loader.snapshots().build() } else { loader.build() }.unwrap()
}

/// Returns the digest of the epoch after the rest of it was read.
fn digest<B: Batch>(loader: &DataLoader<B>, state: &State) -> SampleDigest {
    let mut batches = loader.resume(state).unwrap();
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    batches.report().digest.unwrap()
}

#[test]
fn an_epoch_without_the_rest_of_a_damaged_file_is_not_read() {
    let _watched = watched();
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures"));
    for (fixture, kind) in FILES {
        let whole = fs::read(fixtures.join(fixture)).unwrap();
        let name = fixture.rsplit('/').next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let damaged = folder.path().join(format!("1-{name}"));
        write_old(&folder.path().join(format!("2-{name}")), &whole);
        write_old(&damaged, &whole);
        for with_snapshots in [false, true] {
            let loader = || loader(kind, folder.path(), with_snapshots);
            let expected = digest(&loader(), &loader().state());

            let mut bytes = whole.clone();
            if name.ends_with(".tar") {
                bytes[whole.len() / 2..].fill(0xff)
            } else {
                // The checksum: other damage may first give a row that cannot be parsed.
                bytes[whole.len() - 3] ^= 1
            }
            write_old(&damaged, &bytes);
            let damaged_loader = loader();
            let mut batches = damaged_loader.iter().unwrap();
            let errors: Vec<Error> = batches.by_ref().filter_map(Result::err).collect();
            let [Error::DatasetFailed { failure, .. }] = &errors[..] else { panic!("{fixture}: {errors:?}") };
            let text = failure.chain.join(": ");
            assert!(text.contains("the shard cannot be read further") && text.contains(name), "{text}");
            assert_eq!(batches.report().bad_samples.len(), 0, "{fixture}");
            let state = batches.state();
            assert_eq!(state.epoch(), 0, "{fixture}: the rest of the file is lost");
            drop(batches);

            // The state accepts the repaired file, because its size is the same.
            write_old(&damaged, &whole);
            assert_eq!(digest(&loader(), &state), expected, "{fixture}");
        }
    }
}
