//! Tests of tar shards, with files that webdataset, Python's tarfile and GNU tar have written.

use std::{fs, path::PathBuf};

use loader_core::{
    DataLoader, Dataset, IterableDataset, OnBadSample, SampleContext, Shard, SnapshotDataset,
    SnapshotIterator, Tensor,
};
use loader_data::{
    DataError, DataProblem, FieldOptions, IndexPlace, IndexedTar, Position, Record, TarOptions, TarShards,
    Transform, Value,
};

use crate::everywhere::{same_everywhere, write_old};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats/fixtures/tar").join(name)
}

/// Reads all samples in one shard.
fn all(shards: &TarShards) -> Vec<anyhow::Result<Record>> {
    shards.iter(Shard::new(0, 1), &mut SampleContext::new(7)).unwrap().collect()
}

fn read(name: &str) -> Vec<Record> {
    all(&TarShards::open(fixture(name)).unwrap()).into_iter().map(Result::unwrap).collect()
}

/// The json of the samples has a null, which a batch cannot hold.
///
/// The files are read twice, because a worker that has no more to do ends before the test can kill it.
fn shards_without_nulls() -> TarShards {
    let fields = FieldOptions::new().select(["__key__", "txt", "cls", "bin"]);
    TarShards::open_all([fixture("shard-{0..2}.tar"), fixture("shard-{0..2}.tar")]).unwrap().fields(fields)
}

fn text<'a>(record: &'a Record, field: &str) -> &'a str {
    let Some(Value::Text(text)) = record.get(field) else { panic!("no text `{field}` in {record:?}") };
    text
}

fn error_of(sample: anyhow::Result<Record>) -> DataError {
    sample.unwrap_err().downcast().unwrap()
}

#[test]
fn what_webdataset_wrote_is_read() {
    let samples = read("shard-{0..2}.tar");
    assert_eq!(samples.len(), 16);
    for (number, sample) in samples.iter().enumerate() {
        assert_eq!(text(sample, "__key__"), format!("train/{number:04}"));
        assert_eq!(text(sample, "txt"), format!("sample {number} ä"));
        assert_eq!(sample.get("cls"), Some(&(number as i64 % 10).into()));
        assert_eq!(sample.get("bin"), Some(&vec![number as u8; number * 37 % 700].into()));
        let Some(Value::Record(json)) = sample.get("json") else { panic!("{sample:?}") };
        let tensor = Tensor::from_slice(&[number as i64, 2, 3, 4], [4]).unwrap();
        assert_eq!(json.get("box"), Some(&tensor.into()));
        assert_eq!(json.get("tag"), Some(&Value::Null));
    }
    assert_eq!(text(&samples[8], "__url__"), fixture("shard-1.tar").to_str().unwrap());
}

#[test]
fn all_formats_and_compressions_read_the_same() {
    let gnu = read("gnu.tar");
    let long = format!("folder-{}/{}", "x".repeat(60), "y".repeat(80));
    let very_long = format!("{}/{}/{}", "z".repeat(150), "w".repeat(99), "v".repeat(120));
    let keys: Vec<_> = gnu.iter().map(|sample| text(sample, "__key__")).collect();
    assert_eq!(keys, ["folder/one", &*long, "../up/three", &*very_long, "/five"]);
    let fields: Vec<_> = gnu[0].iter().map(|(name, _)| name).collect();
    assert_eq!(fields, ["__key__", "__url__", "txt", "seg.png", "cls"]);
    assert_eq!(gnu[4].get("cls"), Some(&5i64.into()));
    assert_eq!(text(&gnu[4], "txt").len(), 513);
    let without_url = |samples: Vec<Record>| -> Vec<Record> {
        let without = |mut sample: Record| {
            sample.remove("__url__");
            sample
        };
        samples.into_iter().map(without).collect()
    };
    let gnu = without_url(gnu);
    for other in ["pax.tar", "gnu.tar.gz", "gnu.tar.zst", "two-frames.tar.zst"] {
        assert_eq!(without_url(read(other)), gnu, "{other}");
    }
    let mut ustar = without_url(read("ustar.tar"));
    assert_eq!(text(&ustar[3], "__key__"), format!("{long}4"));
    ustar[3].set("__key__", very_long);
    assert_eq!(ustar, gnu);
}

#[test]
fn fields_are_selected_renamed_and_typed() {
    let options = FieldOptions::new().select(["class", "txt"]).dtype("class", loader_core::DType::U8);
    let shards =
        TarShards::open(fixture("shard-*.tar")).unwrap().rename("class", ["cls2", "cls"]).fields(options);
    let sample = all(&shards).remove(9).unwrap();
    assert_eq!(sample.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["class", "txt"]);
    assert_eq!(sample.get("class"), Some(&9u8.into()));

    #[derive(serde::Deserialize)]
    struct Row {
        #[serde(rename = "__key__")]
        key: String,
        bin: Vec<u8>,
        cls: u8,
    }
    let rows = TarShards::open(fixture("shard-1.tar")).unwrap().rows::<Row>();
    let rows: Vec<_> = rows.iter(Shard::new(0, 1), &mut SampleContext::new(0)).unwrap().collect();
    let row = rows.into_iter().last().unwrap().unwrap();
    assert_eq!((row.key.as_str(), row.bin, row.cls), ("train/0009", vec![9; 333], 9));

    let text = format!(
        r#"{{"path": {:?}, "fields": ["cls"], "dtypes": {{"cls": "int32"}}, "max_sample_bytes": 200}}"#,
        fixture("shard-0.tar")
    );
    let options: TarOptions = serde_json::from_str(&text).unwrap();
    assert_eq!(all(&options.open().unwrap()).remove(3).unwrap().get("cls"), Some(&3i32.into()));
    assert!(serde_json::from_str::<TarOptions>(r#"{"path": "a.tar", "compression": "gzip"}"#).is_err());
}

#[test]
fn batches_are_the_same_everywhere() {
    for snapshots in [false, true] {
        let batches = same_everywhere(|workers| {
            let shards = shards_without_nulls().shuffle_files(true);
            let samples = DataLoader::stream(shards.shuffle_buffer(5)).shards(3).batch_size(1).seed(3);
            let samples = samples.num_workers(workers);
            if snapshots { samples.snapshots().build().unwrap() } else { samples.build().unwrap() }
        });
        assert_eq!(
            batches.iter().map(|batch| batch.tensor::<i64>("cls").unwrap().shape()[0]).sum::<usize>(),
            32
        );
    }
}

#[test]
fn images_are_the_same_everywhere() {
    let build = |workers| {
        let shards = TarShards::open_all([(); 5].map(|()| fixture("photos.tar"))).unwrap();
        let shards = shards.decode_images(Transform::standard_train(32)).unwrap();
        let shards = shards.fields(FieldOptions::new().select(["jpg", "cls"]));
        DataLoader::stream(shards).shards(2).batch_size(1).snapshots().num_workers(workers).build().unwrap()
    };
    let batches = same_everywhere(build);
    assert_eq!(batches[0].tensor::<f32>("jpg").unwrap().shape(), [1, 3, 32, 32]);
    let shards = TarShards::open(fixture("photos.tar")).unwrap();
    let bytes = shards.decode_images_u8(Transform::new().resize(16)).unwrap();
    assert!(
        matches!(all(&bytes)[0].as_ref().unwrap().get("jpg"), Some(Value::Tensor(image)) if image.shape()[1] == 16)
    );
    let normalised =
        TarShards::open(fixture("photos.tar")).unwrap().decode_images_u8(Transform::standard_eval(8));
    assert!(normalised.is_err());
}

#[test]
fn files_are_permuted_once_for_all_shards() {
    let order = |epoch_seed: u64, shards: usize| {
        let dataset = TarShards::open(fixture("shard-{0..2}.tar")).unwrap().shuffle_files(true);
        let mut keys: Vec<Vec<String>> = Vec::new();
        for index in 0..shards {
            let mut cx = SampleContext::new(epoch_seed);
            let samples = dataset.iter(Shard::new(index, shards), &mut cx).unwrap();
            keys.push(samples.map(|sample| text(&sample.unwrap(), "__key__").to_owned()).collect());
        }
        keys
    };
    for seed in 0..6 {
        let mut found = order(seed, 2).concat();
        found.sort();
        assert_eq!(found, (0..16).map(|number| format!("train/{number:04}")).collect::<Vec<_>>());
    }
    assert!((1..10).any(|seed| order(seed, 1) != order(0, 1)));
}

#[test]
fn a_snapshot_continues_after_each_sample() {
    let files = ["shard-0.tar", "gnu.tar.zst", "sparse.tar", "pax.tar", "gnu.tar.gz"].map(fixture);
    let shards = TarShards::open_all(files).unwrap();
    let shard = Shard::new(0, 1);
    let show = |sample: anyhow::Result<Record>| sample.map_err(|error| error.to_string());
    let whole: Vec<_> = all(&shards).into_iter().map(show).collect();
    assert_eq!(whole.len(), 8 + 5 + 1 + 5 + 5);
    let mut cx = SampleContext::new(7);
    let mut samples = shards.iter_from(shard, &mut cx, None).unwrap();
    for taken in 1..=whole.len() {
        samples.next().unwrap().ok();
        let snapshot = samples.snapshot().unwrap();
        let mut cx = SampleContext::new(7);
        let rest = shards.iter_from(shard, &mut cx, Some(snapshot)).unwrap();
        assert_eq!(rest.map(show).collect::<Vec<_>>(), whole[taken..], "after {taken}");
    }
}

#[test]
fn sparse_members_and_other_files_are_refused() {
    for name in ["sparse.tar", "sparse-pax.tar"] {
        let error = error_of(all(&TarShards::open(fixture(name)).unwrap()).remove(0));
        assert!(matches!(error.problem, DataProblem::Unsupported(_)), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.tar");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(TarShards::open(&pipe).unwrap_err().problem, DataProblem::NotAFile { .. }));
    assert!(matches!(TarShards::open(folder.path()).unwrap_err().problem, DataProblem::NotAFile { .. }));
    fs::remove_file(pipe).unwrap();
    assert!(matches!(TarShards::open(folder.path()).unwrap_err().problem, DataProblem::NoFiles { .. }));
    let missing = TarShards::open(folder.path().join("x-{0..3}.tar")).unwrap_err();
    assert!(matches!(missing.problem, DataProblem::NotFound));
}

#[test]
fn a_damaged_file_costs_its_own_samples_only() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["gnu.tar", "gnu.tar.gz", "gnu.tar.zst"] {
        let bytes = fs::read(fixture(name)).unwrap();
        let path = folder.path().join(name);
        fs::write(&path, &bytes[..bytes.len() / 4]).unwrap();
        let shards = TarShards::open_all([path, fixture("shard-1.tar")]).unwrap();
        let mut samples = all(&shards);
        let last_two = samples.split_off(samples.len() - 2);
        assert!(last_two.iter().all(Result::is_ok), "{name}");
        let error = error_of(samples.pop().unwrap());
        assert!(matches!(error.problem, DataProblem::Truncated), "{error}");
        assert!(error.to_string().contains(name) && error.position != Position::File, "{error}");
    }
}

#[test]
fn the_checksum_of_the_compression_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let show = |sample: anyhow::Result<Record>| {
        sample.map(|mut sample| sample.remove("__url__").map(|_| sample)).map_err(|error| error.to_string())
    };
    for name in ["gnu.tar.gz", "gnu.tar.zst"] {
        let bytes = fs::read(fixture(name)).unwrap();
        let whole: Vec<_> = all(&TarShards::open(fixture(name)).unwrap()).into_iter().map(show).collect();
        let mut same = 0;
        for offset in 20..bytes.len() {
            let mut changed = bytes.clone();
            changed[offset] ^= 0x10;
            let path = folder.path().join(name);
            write_old(&path, &changed);
            let samples: Vec<_> = all(&TarShards::open(&path).unwrap()).into_iter().map(show).collect();
            // Some changes decompress to the same, such as another distance in a run of zeros.
            same += usize::from(samples == whole);
            assert!(samples == whole || samples.iter().any(Result::is_err), "{name} changed at {offset}");
        }
        assert!(same < 10, "{same} changes of {name} were not noticed");
    }
}

#[test]
fn bad_samples_can_be_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("classes.tar");
    let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
    for (name, class) in [("a.cls", "5"), ("b.cls", "no number"), ("c.cls", "7")] {
        let mut header = tar::Header::new_ustar();
        header.set_size(class.len() as u64);
        archive.append_data(&mut header, name, class.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap();
    let shards = TarShards::open_all([path, fixture("shard-1.tar")]).unwrap();
    let shards = shards.fields(FieldOptions::new().select(["cls"]));
    let loader = DataLoader::stream(shards).batch_size(100).on_bad_sample(OnBadSample::Skip).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let batch = batches.next().unwrap().unwrap();
    let classes = batch.tensor::<i64>("cls").unwrap().as_slice().to_vec();
    assert!(classes.starts_with(&[5, 7]) && classes.ends_with(&[8, 9]), "{classes:?}");
    assert!(batches.next().is_none());
    assert_eq!((batches.report().bad_samples.len(), batches.state().epoch()), (1, 1));
}

#[test]
fn indexed_samples_are_those_of_the_stream_and_the_same_everywhere() {
    let shards =
        TarShards::open_all(["shard-*.tar", "gnu.tar", "pax.tar", "ustar.tar"].map(fixture)).unwrap();
    let streamed: Vec<_> = all(&shards).into_iter().map(Result::unwrap).collect();
    let indexed = shards.indexed().unwrap();
    assert_eq!(indexed.len(), streamed.len());
    for index in (0..indexed.len()).rev() {
        assert_eq!(indexed.get(index, &mut SampleContext::new(0)).unwrap(), streamed[index]);
    }
    assert!(indexed.get(indexed.len(), &mut SampleContext::new(0)).is_err());

    let batches = same_everywhere(|workers| {
        let samples = shards_without_nulls().indexed().unwrap();
        DataLoader::builder(samples).batch_size(2).shuffle(true).seed(1).num_workers(workers).build().unwrap()
    });
    assert_eq!(batches.len(), 16);
    let classes = FieldOptions::new().select(["cls"]);
    let classes = TarShards::open(fixture("photos.tar")).unwrap().fields(classes).indexed().unwrap();
    assert_eq!(classes.get(3, &mut SampleContext::new(0)).unwrap(), [("cls", 3i64)].into_iter().collect());
}

#[test]
fn an_index_needs_whole_archives_that_are_not_compressed() {
    let problem = |path: PathBuf| TarShards::open(path).unwrap().indexed().unwrap_err().problem;
    assert!(matches!(problem(fixture("gnu.tar.gz")), DataProblem::Unsupported(_)));
    assert!(matches!(problem(fixture("gnu.tar.zst")), DataProblem::Unsupported(_)));
    assert!(matches!(problem(fixture("sparse.tar")), DataProblem::Unsupported(_)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.tar");
    let bytes = fs::read(fixture("shard-0.tar")).unwrap();
    fs::write(&path, &bytes[..20_000]).unwrap();
    assert!(matches!(problem(path.clone()), DataProblem::Truncated));

    fs::write(&path, &bytes).unwrap();
    let indexed = TarShards::open(&path).unwrap().indexed().unwrap();
    // The file is still open in `indexed`, but not in its clone.
    let clone = indexed.clone();
    fs::write(&path, &bytes[..30_720]).unwrap();
    let error = clone.get(7, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::Changed { .. }), "{error}");
    drop(indexed);
}

#[test]
fn an_index_is_stored_beside_the_archive_and_made_again_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    fs::copy(fixture("shard-0.tar"), &path).unwrap();
    let indexed =
        || TarShards::open(folder.path().join("*")).unwrap().index(IndexPlace::Beside).indexed().unwrap();
    let keys = |indexed: &IndexedTar| -> Vec<String> {
        let key =
            |index| text(&indexed.get(index, &mut SampleContext::new(0)).unwrap(), "__key__").to_owned();
        (0..indexed.len()).map(key).collect()
    };
    let expected = keys(&indexed());
    assert_eq!(expected.len(), 8);
    let stored = fs::read(folder.path().join("a.tar.index")).unwrap();
    assert_eq!(keys(&indexed()), expected, "from the stored index");
    fs::copy(fixture("shard-1.tar"), &path).unwrap();
    assert_eq!(keys(&indexed()), ["train/0008", "train/0009"]);
    assert_ne!(fs::read(folder.path().join("a.tar.index")).unwrap(), stored);
}

#[test]
fn a_line_break_that_hides_the_name_of_a_member_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let read = |name: &str, records: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_pax_extensions(records.iter().copied()).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, &b"1"[..]).unwrap();
        fs::write(&path, archive.into_inner().unwrap()).unwrap();
        all(&TarShards::open(&path).unwrap())
            .into_iter()
            .map(|sample| Ok(text(&sample?, "__key__").to_owned()))
            .collect::<anyhow::Result<Vec<_>>>()
    };
    let comment: (&str, &[u8]) = ("comment", b"of two\nlines\n");
    assert_eq!(read("a.txt", &[comment]).unwrap(), ["a"], "nothing is hidden");
    assert_eq!(read("?.txt", &[("path", "ä.txt".as_bytes()), comment]).unwrap(), ["ä"], "not the name");
    for name in ["?.txt", &"a".repeat(100)] {
        let error = read(name, &[comment, ("path", "ä.txt".as_bytes())]).unwrap_err();
        assert!(format!("{error:#}").contains("hides the name of a member"), "{error:#}");
    }
}

#[test]
fn an_index_of_other_samples_with_the_same_size_and_time_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let write = |names: &[&str]| {
        let mut archive = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            archive.append_data(&mut header, name, &b"1"[..]).unwrap();
        }
        write_old(&path, &archive.into_inner().unwrap());
    };
    let first = || {
        let indexed = TarShards::open(&path).unwrap().index(IndexPlace::Beside).indexed().unwrap();
        indexed.get(0, &mut SampleContext::new(0))
    };
    write(&["a.x", "a.y", "a.z", "b.x", "b.y"]);
    first().unwrap();
    write(&["a.x", "a.y", "b.x", "b.y", "b.z"]);
    let error = first().unwrap_err();
    assert!(error.to_string().contains("make the index again"), "{error:#}");
}

#[cfg(feature = "cloud")]
#[test]
fn archives_on_a_server_are_read_like_files() {
    let server = crate::server::Server::start();
    let timeout = std::time::Duration::from_secs(5);
    let store = loader_data::StoreOptions { allow_http: true, timeout, ..Default::default() };
    // More than what is fetched at once, and than what is read only to be dropped.
    let mut large = tar::Builder::new(Vec::new());
    for (name, len) in [("a.bin", 1_000_000), ("b.bin", 9_000_000), ("b.cls", 1), ("c.cls", 1)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        large.append_data(&mut header, name, &*vec![b'1'; len as usize]).unwrap();
    }
    server.put("large.tar", large.into_inner().unwrap());
    for name in ["shard-0.tar", "gnu.tar.gz", "pax.tar"] {
        server.put(name, fs::read(fixture(name)).unwrap());
    }
    let open = |name: &str| TarOptions::new(server.url(name)).store(store.clone()).open().unwrap();
    let indexed = |shards: TarShards| -> Vec<Record> {
        let indexed = shards.indexed().unwrap();
        (0..indexed.len()).map(|index| indexed.get(index, &mut SampleContext::new(0)).unwrap()).collect()
    };
    for name in ["shard-0.tar", "gnu.tar.gz", "pax.tar"] {
        let remote: Vec<_> = all(&open(name)).into_iter().map(Result::unwrap).collect();
        let mut without_url = remote.clone();
        without_url.iter_mut().for_each(|sample| sample.set("__url__", fixture(name).to_str().unwrap()));
        assert_eq!(without_url, read(name), "{name}");
        if name.ends_with(".tar") {
            assert_eq!(indexed(open(name)), remote, "{name}");
        }
    }
    let classes = || open("large.tar").fields(FieldOptions::new().select(["__key__", "cls"]));
    let keys: Vec<_> = all(&classes())
        .into_iter()
        .map(|sample| sample.map_or_else(|e| e.to_string(), |s| text(&s, "__key__").to_owned()))
        .collect();
    assert!(keys[0].contains("no field `cls`") && keys[1..] == ["b", "c"], "{keys:?}");
    let bytes: Vec<_> = indexed(open("large.tar")).iter().map(Record::len).collect();
    assert_eq!(bytes, [3, 4, 3]);
}
