//! Each format on a server that fails, and whose files change or vanish.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use loader_core::{DataLoader, Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{
    AudioFiles, Columns, DataError, DataProblem, FieldOptions, ImageTableOptions, IndexPlace, IndexedTar,
    RecordConfig, Records, StoreOptions, TarShards, Value,
};

use crate::server::{Fault, Server};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");

/// A dataset whose files are on a server and on the local disk.
struct Case {
    server: Server,
    folder: tempfile::TempDir,
    config: &'static str,
    /// Names of the files. Row 0 is in the first one.
    names: Vec<String>,
}

impl Case {
    /// Copies fixtures to a server and to a local folder. `files` are pairs of the fixture's path and the
    /// copy's name. In `config`, `ROOT` stands for the folder of the copies.
    fn new(config: &'static str, files: impl IntoIterator<Item = (String, String)>) -> Self {
        let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
        let mut names = Vec::new();
        for (fixture, name) in files {
            let content = fs::read(Path::new(FIXTURES).join(fixture)).unwrap();
            let path = folder.path().join(&name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &content).unwrap();
            server.put(&format!("bucket/{name}"), content);
            names.push(name);
        }
        Self { server, folder, config, names }
    }

    fn arrow(config: &'static str) -> Self {
        let file = |part| format!("arrow/saved/data-{part:05}-of-00002.arrow");
        Self::new(config, [0, 1].map(|part| (file(part), format!("{part}.arrow"))))
    }

    fn csv(config: &'static str) -> Self {
        Self::new(config, [0, 1, 2].map(|part| (format!("csv/part-{part}.csv"), format!("{part}.csv"))))
    }

    fn json_lines(config: &'static str) -> Self {
        let file = |part| (format!("json_lines/json-{part}.jsonl"), format!("{part}.jsonl"));
        Self::new(config, [0, 1, 2].map(file))
    }

    fn parquet(config: &'static str) -> Self {
        let file = |part| (format!("parquet/train-{part:05}-of-00002.parquet"), format!("{part}.parquet"));
        Self::new(config, [0, 1].map(file))
    }

    fn tar() -> Self {
        let file = |part| (format!("tar/shard-{part}.tar"), format!("{part}.tar"));
        Self::new(
            r#"{"kind": "tar", "path": "ROOT/{0..2}.tar", "fields": ["cls", "txt", "bin"]}"#,
            [0, 1, 2].map(file),
        )
    }

    fn audio() -> Self {
        let config = r#"{"kind": "audio-folder", "path": "ROOT/", "sample_rate": 16000, "mono": true,
            "crop": {"random": 300}}"#;
        let fixtures = ["s16.wav", "s16.flac", "noise.flac", "tone.mp3", "tone.ogg"].iter().cycle();
        let files = (0..10).zip(fixtures);
        Self::new(config, files.map(|(n, name)| (format!("audio/{name}"), format!("{}/{n}-{name}", n / 5))))
    }

    fn images(config: &'static str) -> Self {
        let images = ["007", "8", "part/0.png", "part/1.jpg"]
            .map(|name| (format!("images/csv/{name}"), name.to_owned()));
        Self::new(
            config,
            [("images/csv/metadata.csv".to_owned(), "metadata.csv".to_owned())].into_iter().chain(images),
        )
    }

    /// Opens the dataset at `root`: the local folder or a URL. A request has `timeout` seconds.
    fn open_at(&self, root: &str, timeout: u64) -> Result<Records, DataError> {
        let config: RecordConfig = serde_json::from_str(&self.config.replace("ROOT", root)).unwrap();
        self.options(timeout).scope(|| config.open())
    }

    fn options(&self, timeout: u64) -> StoreOptions {
        StoreOptions {
            endpoint: Some(self.server.url("")),
            skip_signature: true,
            allow_http: true,
            timeout: Duration::from_secs(timeout),
            ..StoreOptions::default()
        }
    }

    /// Returns the batches of an epoch. Calls `before` after the dataset was opened and before the first
    /// batch.
    fn batches(records: Records, workers: usize, before: impl FnOnce()) -> Vec<Columns> {
        let loader = match records {
            Records::Map(records) => {
                DataLoader::builder(records).shuffle(true).batch_size(3).num_workers(workers).seed(1).build()
            }
            Records::Stream(records) => {
                DataLoader::stream(records).shards(2).batch_size(3).num_workers(workers).build()
            }
        };
        before();
        loader.unwrap().epoch(0).unwrap().map(Result::unwrap).collect()
    }

    /// Opens the dataset, calls `damage`, and returns the problem of the first row.
    fn problem_after(&self, damage: impl FnOnce(&Server)) -> DataProblem {
        let records = self.open_at("s3://bucket", 1).unwrap();
        damage(&self.server);
        let mut cx = SampleContext::new(0);
        let failed = match &records {
            Records::Map(records) => records.get(0, &mut cx),
            Records::Stream(records) => records.iter(Shard::new(0, 1), &mut cx).unwrap().next().unwrap(),
        };
        self.server.recover();
        failed.unwrap_err().downcast::<DataError>().unwrap().problem
    }

    /// Checks that batches from the server equal those from the local disk, even if some requests fail once.
    /// Checks that requests that always fail, and a file `changing` that changes or vanishes, give typed
    /// errors.
    fn check(&self, changing: &str) {
        let local = Self::batches(self.open_at(self.folder.path().to_str().unwrap(), 1).unwrap(), 0, || ());
        let faults = [Fault::Status(500), Fault::Cut(1), Fault::Slow(3), Fault::Status(503)];
        for workers in [0, 2] {
            let read = |faults: &[Fault]| {
                let batches = Self::batches(self.open_at("s3://bucket", 20).unwrap(), workers, || {
                    self.server.requests();
                    self.server.fail(faults.iter().copied());
                });
                assert!(batches == local, "{} with {workers} workers and {faults:?}", self.config);
                self.server.seen()
            };
            let (clean, faulty) = (read(&[]), read(&faults));
            // With workers, the number of requests varies, because each worker asks for what all rows need.
            assert!(workers > 0 || faulty >= clean + 3, "{}: {clean} requests, then {faulty}", self.config);
        }

        let failing = self.problem_after(|server| server.fail([Fault::Status(500); 100]));
        assert!(matches!(failing, DataProblem::Server { status: 500 }), "{failing}");
        let cut = self.problem_after(|server| server.fail([Fault::Cut(1); 100]));
        assert!(matches!(cut, DataProblem::Unreadable(_) | DataProblem::Timeout { .. }), "{cut}");

        let path = format!("bucket/{changing}");
        let content = fs::read(self.folder.path().join(changing)).unwrap();
        let mut other = content.clone();
        *other.last_mut().unwrap() ^= 1;
        let changed = self.problem_after(|server| server.put(&path, other));
        assert!(matches!(changed, DataProblem::Changed { .. }), "{changed}");
        self.server.put(&path, content.clone());
        let vanished = self.problem_after(|server| server.remove(&path));
        assert!(matches!(vanished, DataProblem::NotFound), "{vanished}");
        self.server.put(&path, content);
    }
}

#[test]
fn arrow_at_random() {
    Case::arrow(r#"{"kind": "arrow", "path": "ROOT/*.arrow"}"#).check("0.arrow");
}

#[test]
fn arrow_in_order() {
    Case::arrow(r#"{"kind": "arrow-stream", "path": "ROOT/{0,1}.arrow"}"#).check("0.arrow");
}

#[test]
fn folders_of_save_to_disk() {
    let names = ["state.json", "data-00000-of-00002.arrow", "data-00001-of-00002.arrow"];
    let files = names.map(|name| (format!("arrow/splits/train/{name}"), name.to_owned()));
    Case::new(r#"{"kind": "arrow", "path": "ROOT/"}"#, files).check("data-00000-of-00002.arrow");
}

#[test]
fn csv_at_random() {
    Case::csv(r#"{"kind": "csv", "path": "ROOT/*.csv", "index": "none", "fields": ["id", "text", "score"]}"#)
        .check("0.csv");
}

#[test]
fn csv_in_order() {
    Case::csv(r#"{"kind": "csv-stream", "path": "ROOT/{0..2}.csv", "fields": ["id", "text", "score"]}"#)
        .check("0.csv");
}

#[test]
fn json_lines_at_random() {
    let config = r#"{"kind": "json-lines", "path": "ROOT/*.jsonl", "index": "none", "fields": ["id", "text", "score"]}"#;
    Case::json_lines(config).check("0.jsonl");
}

#[test]
fn json_lines_in_order() {
    let config =
        r#"{"kind": "json-lines-stream", "path": "ROOT/{0..2}.jsonl", "fields": ["id", "text", "score"]}"#;
    Case::json_lines(config).check("0.jsonl");
}

#[test]
fn parquet_at_random() {
    Case::parquet(r#"{"kind": "parquet", "path": "ROOT/*.parquet", "cache_bytes": 0}"#).check("0.parquet");
}

#[test]
fn parquet_in_order() {
    Case::parquet(r#"{"kind": "parquet-stream", "path": "ROOT/{0,1}.parquet"}"#).check("0.parquet");
}

#[test]
fn workers_do_not_fetch_the_footers_of_parquet() {
    let case = Case::parquet(r#"{"kind": "parquet-stream", "path": "ROOT/{0,1}.parquet"}"#);
    let len = |name: &String| fs::metadata(case.folder.path().join(name)).unwrap().len() as usize;
    let lens: Vec<_> = case.names.iter().map(len).collect();
    let footers = || {
        let requests = case.server.requests().into_iter();
        requests.filter_map(|request| request.range).filter(|range| lens.contains(&range.end)).count()
    };
    case.server.requests();
    let records = case.open_at("s3://bucket", 20).unwrap();
    assert_eq!(footers(), 2, "main reads the footer of each file");
    for workers in [0, 2] {
        assert!(!Case::batches(records.clone(), workers, || ()).is_empty());
        assert_eq!(footers(), 0, "with {workers} workers");
    }
}

#[test]
fn parquet_in_blocks() {
    // One file, so that the first row is in it, whatever the order of the row groups is.
    let files = [("parquet/train-00000-of-00002.parquet".to_owned(), "0.parquet".to_owned())];
    let config = r#"{"kind": "parquet-stream", "path": "ROOT/0.parquet", "shuffle_blocks": 2}"#;
    Case::new(config, files).check("0.parquet");
}

#[test]
fn tar_in_order() {
    Case::tar().check("0.tar");
}

#[test]
fn tar_at_random() {
    let tar = Case::tar();
    let open = |root: &str| {
        let options = || TarShards::open(format!("{root}/{{0..2}}.tar"));
        let fields = FieldOptions::new().select(["cls", "txt", "bin"]);
        let shards = tar.options(20).scope(options)?.fields(fields).index(IndexPlace::None);
        shards.indexed()
    };
    let local = open(tar.folder.path().to_str().unwrap()).unwrap();
    let remote = open("s3://bucket").unwrap();
    let get = |records: &IndexedTar, index| records.get(index, &mut SampleContext::new(0));
    assert!(local.len() > 4);
    for index in 0..local.len() {
        if index % 5 == 0 {
            tar.server.fail([Fault::Status(500), Fault::Cut(1)]);
        }
        assert_eq!(get(&remote, index).unwrap(), get(&local, index).unwrap(), "sample {index}");
    }

    let content = fs::read(tar.folder.path().join("0.tar")).unwrap();
    let problem = || get(&remote, 0).unwrap_err().downcast::<DataError>().unwrap().problem;
    let mut other = content.clone();
    *other.last_mut().unwrap() ^= 1;
    tar.server.put("bucket/0.tar", other);
    assert!(matches!(problem(), DataProblem::Changed { .. }));
    tar.server.remove("bucket/0.tar");
    assert!(matches!(problem(), DataProblem::NotFound));
    tar.server.put("bucket/0.tar", content);
    get(&remote, 0).unwrap();
}

#[test]
fn archives_of_arrays() {
    let files = [("arrays/digits.npz".to_owned(), "digits.npz".to_owned())];
    Case::new(r#"{"kind": "arrays", "path": "ROOT/digits.npz"}"#, files).check("digits.npz");
}

#[test]
fn folders_of_audio() {
    let audio = Case::audio();
    audio.check(&audio.names[0]);
}

#[test]
fn tables_of_images() {
    let config = r#"{"kind": "image-table", "path": "ROOT/", "fields": ["label", "image"],
        "images": {"image": {"transform": "train", "size": 8}}}"#;
    let images = Case::images(config);
    images.check("metadata.csv");
    let problem = images.problem_after(|server| server.remove("bucket/007"));
    assert!(matches!(problem, DataProblem::NotFound), "{problem}");
}

#[test]
fn audio_files_of_a_batch_are_read_at_the_same_time() {
    const LATENCY: Duration = Duration::from_millis(500);
    let server = Server::start();
    let content = fs::read(format!("{FIXTURES}/audio/s16.flac")).unwrap();
    (0..8).for_each(|n| server.put(&format!("{n}.flac"), content.clone()));
    let store = StoreOptions { allow_http: true, ..StoreOptions::default() };
    let files = store.scope(|| AudioFiles::open(server.url("{0..7}.flac"))).unwrap();
    server.set_latency(LATENCY);
    let started = Instant::now();
    let records = files.get_many(&[0, 1, 2, 3, 4, 5, 6, 7], &mut SampleContext::new(0)).unwrap();
    assert!(started.elapsed() < LATENCY * 8, "the files were read one after the other");
    for record in records {
        let Some(Value::Record(file)) = record.get("audio") else { panic!("{record:?}") };
        assert_eq!(file.get("bytes"), Some(&content.clone().into()));
    }
}

#[test]
fn a_table_of_csv_is_opened_once() {
    let server = Server::start();
    let store = StoreOptions { allow_http: true, ..StoreOptions::default() };
    let requests = |names: [&str; 2]| {
        server.put("metadata.csv", format!("file_name,label\n{},1\n{},2\n", names[0], names[1]));
        server.requests();
        let options = ImageTableOptions::new(server.url("metadata.csv")).store(store.clone());
        assert_eq!(options.open().unwrap().len(), 2);
        server.seen()
    };
    // Names that look like numbers are texts all the same.
    assert_eq!(requests(["7", "8"]), requests(["a", "b"]));
}

#[test]
fn tables_of_images_on_an_http_server() {
    let images = Case::images(r#"{"kind": "image-table", "path": "ROOT", "fields": ["label", "image"]}"#);
    let first = |root: &str| {
        let Records::Map(records) = images.open_at(root, 20)? else { panic!("a table is map-style") };
        Ok::<_, DataError>(records.get(0, &mut SampleContext::new(0)))
    };
    let local = first(images.folder.path().to_str().unwrap()).unwrap().unwrap();
    let root = images.server.url("bucket/");
    // For a folder, main asks for each name that a table may have.
    assert_eq!(first(&root).unwrap().unwrap(), local);
    assert_eq!(first(&format!("{root}metadata.csv")).unwrap().unwrap(), local);
    let error = |result: Result<_, DataError>| result.map(drop).unwrap_err().problem;
    // A wildcard needs a list of files, which an HTTP server does not have.
    assert!(matches!(error(first(&format!("{root}*.csv"))), DataProblem::Unsupported(_)));
    assert!(matches!(
        error(first(&images.server.url("bucket/part/"))),
        DataProblem::InvalidOption { option: "path", .. }
    ));
    assert!(matches!(error(first(&images.server.url("bucket"))), DataProblem::NotFound));

    // Names are escaped, and cannot lead out of the folder.
    let png = fs::read(images.folder.path().join("part/0.png")).unwrap();
    images.server.put("bucket/100% a?b#.png", png.clone());
    images.server.put("outside.png", png.clone());
    images.server.put("bucket/large.png", vec![0; 2000]);
    let table = "file_name,label\n100% a?b#.png,1\n../outside.png,2\n/outside.png,3\nlarge.png,4\n";
    images.server.put("bucket/metadata.csv", table);
    let config = format!(
        r#"{{"kind": "image-table", "path": "{root}", "store": {{"allow_http": true}}, "max_file_bytes": 1999}}"#
    );
    let config: RecordConfig = serde_json::from_str(&config).unwrap();
    let Records::Map(records) = config.open().unwrap() else { panic!("a table is map-style") };
    let get = |index| records.get(index, &mut SampleContext::new(0));
    let Some(Value::Record(image)) = get(0).unwrap().get("image").cloned() else { panic!("no image") };
    assert_eq!(image.get("bytes"), Some(&png.into()));
    let problem = |index| get(index).unwrap_err().downcast::<DataError>().unwrap().problem;
    assert!(matches!(problem(1), DataProblem::Record(_)));
    assert!(matches!(problem(2), DataProblem::Record(_)));
    assert!(matches!(problem(3), DataProblem::TooLarge { option: "max_file_bytes", .. }));
}

/// Most of an Arrow file is the data of its record batches, which opening does not fetch.
#[test]
fn opening_an_arrow_file_fetches_its_messages() {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt64, false)]));
    let mut file = FileWriter::try_new(Vec::new(), &schema).unwrap();
    for batch in 0..20 {
        let numbers = UInt64Array::from_iter_values((0..10_000).map(|number| number * 20 + batch));
        file.write(&RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers)]).unwrap()).unwrap();
    }
    let file = file.into_inner().unwrap();
    let (server, len) = (Server::start(), file.len());
    server.put("a.arrow", file);
    let config = format!(
        r#"{{"kind": "arrow", "path": "{}", "store": {{"allow_http": true}}}}"#,
        server.url("a.arrow")
    );
    let config: RecordConfig = serde_json::from_str(&config).unwrap();
    let Records::Map(records) = config.open().unwrap() else { panic!("a file is map-style") };
    let fetched: usize =
        server.requests().into_iter().filter_map(|request| request.range).map(|range| range.len()).sum();
    assert!(fetched < len / 10, "{fetched} of {len} bytes");
    let row = records.get(123_456, &mut SampleContext::new(0)).unwrap();
    assert_eq!(row.get("x"), Some(&(3456_u64 * 20 + 12).into()));
}

#[test]
fn a_server_may_refuse_the_names_of_tables_that_it_does_not_have() {
    let images = Case::images(r#"{"kind": "image-table", "path": "ROOT", "fields": ["image"]}"#);
    let root = images.server.url("bucket/");
    images.server.remove("bucket/metadata.csv");
    images.server.put("bucket/metadata.jsonl", "{\"file_name\": \"8\"}\n");
    images.server.fail([Fault::Status(403)]);
    let Records::Map(records) = images.open_at(&root, 20).unwrap() else { panic!("a table is map-style") };
    assert_eq!(records.len(), 1);
    images.server.fail([Fault::Status(403); 3]);
    let refused = images.open_at(&root, 20).unwrap_err();
    assert!(matches!(refused.problem, DataProblem::PermissionDenied { status: 403, .. }), "{refused}");
}
