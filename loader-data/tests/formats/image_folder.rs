//! An image folder on a server.

use std::{fs, path::Path, time::Duration};

use loader_core::{DataLoader, Dataset, SampleContext, Tensor};
use loader_data::{
    DataError, DataProblem, DatasetConfig, ImageError, ImageFolder, ImageFolderError, OpenDataset,
    StoreOptions, Transform,
};

use crate::{everywhere::watched, server::Server};

/// Files with the fixture that each is a copy of. `a-b` comes after `a` as a class, but before `a/` as a text.
const FILES: [(&str, &str); 6] = [
    ("a-b/1.png", "part/0.png"),
    ("a/2.JPG", "part/1.jpg"),
    ("a/sub/0.jpg", "007"),
    ("a/sub-b/9.jpeg", "8"),
    ("a/notes.txt", "metadata.csv"),
    ("read-me.txt", "metadata.csv"),
];

struct Folder {
    server: Server,
    local: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/images/csv"));
        let (server, local) = (Server::start(), tempfile::tempdir().unwrap());
        for (name, fixture) in FILES {
            let content = fs::read(fixtures.join(fixture)).unwrap();
            let path = local.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &content).unwrap();
            server.put(&format!("bucket/train/{name}"), content);
        }
        Self { server, local }
    }

    fn options(&self) -> StoreOptions {
        StoreOptions {
            endpoint: Some(self.server.url("")),
            skip_signature: true,
            allow_http: true,
            timeout: Duration::from_secs(20),
            ..StoreOptions::default()
        }
    }

    fn open(&self, url: &str) -> Result<ImageFolder<f32>, ImageFolderError> {
        let images = self.options().scope(|| ImageFolder::open(url))?;
        Ok(images.transform(Transform::standard_train(32))?)
    }
}

fn batches(images: ImageFolder<f32>, workers: usize) -> Vec<(Tensor<f32>, Tensor<u32>)> {
    let loader = DataLoader::builder(images).shuffle(true).batch_size(3).num_workers(workers).seed(1);
    loader.build().unwrap().epoch(0).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_folder_on_a_server_has_the_samples_of_a_local_one() {
    let _watched = watched();
    let folder = Folder::new();
    let local = ImageFolder::open(folder.local.path()).unwrap();
    let local = local.transform(Transform::standard_train(32)).unwrap();
    let remote = folder.open("s3://bucket/train").unwrap();
    assert_eq!(remote.classes(), local.classes());
    assert!(remote.labels().eq(local.labels()));
    assert_eq!(remote.fingerprint(), local.fingerprint());
    let expected: Vec<_> =
        ["a/2.JPG", "a/sub/0.jpg", "a/sub-b/9.jpeg", "a-b/1.png"].map(str::to_owned).into();
    let names = |images: &ImageFolder<f32>, root: &Path| -> Vec<String> {
        let path =
            |index| images.path(index).unwrap().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        (0..images.len()).map(path).collect()
    };
    assert_eq!(names(&local, folder.local.path()), expected);
    assert_eq!(names(&remote, Path::new("s3://bucket/train")), expected);
    let sizes = |images: &ImageFolder<f32>| (0..6).map(|index| images.file_bytes(index)).collect::<Vec<_>>();
    let on_disk = |name: &String| Some(fs::metadata(folder.local.path().join(name)).unwrap().len());
    let expected: Vec<_> = expected.iter().map(on_disk).chain([None, None]).collect();
    assert_eq!(sizes(&local), expected);
    assert_eq!(sizes(&remote), expected);

    folder.server.requests();
    let expected = batches(local, 0);
    for workers in [0, 2] {
        assert!(batches(remote.clone(), workers) == expected, "with {workers} workers");
    }
    assert_eq!(folder.server.requests().len(), 2 * 4, "one request for each image");
    let mut cx = SampleContext::new(0);
    assert_eq!(remote.get(3, &mut cx).unwrap().1, 1);
}

#[test]
fn images_of_a_batch_are_fetched_at_the_same_time() {
    let _watched = watched();
    let folder = Folder::new();
    let remote = folder.open("s3://bucket/train/").unwrap();
    let latency = Duration::from_millis(300);
    folder.server.set_latency(latency);
    let mut cx = SampleContext::new(0);
    // A busy machine gets a second try.
    let is_quick = |_| {
        let started = std::time::Instant::now();
        assert_eq!(remote.get_many(&[0, 1, 2, 3], &mut cx).unwrap().len(), 4);
        started.elapsed() < 3 * latency
    };
    assert!((0..2).any(is_quick), "four requests, one after the other, take 1.2 s");
}

#[test]
fn the_errors_of_a_folder_on_a_server_are_typed() {
    let _watched = watched();
    let folder = Folder::new();
    let remote = folder.open("s3://bucket/train/").unwrap();
    let error = |index: usize| remote.get(index, &mut SampleContext::new(0)).unwrap_err();
    folder.server.put("bucket/train/a/2.JPG", "another image");
    let changed = error(0).downcast::<DataError>().unwrap();
    assert!(matches!(changed.problem, DataProblem::Changed { .. }), "{changed}");
    folder.server.put("bucket/train/b/1.jpg", "no image");
    let renewed = folder.open("s3://bucket/train/").unwrap();
    let damaged = renewed.get(4, &mut SampleContext::new(0)).unwrap_err().downcast::<ImageError>().unwrap();
    assert!(damaged.to_string().contains("`s3://bucket/train/b/1.jpg`"), "{damaged}");
    let large = renewed.max_file_bytes(3).get(4, &mut SampleContext::new(0)).unwrap_err();
    assert!(large.to_string().contains("max_file_bytes"), "{large}");

    folder.server.put("bucket/empty/a/notes.txt", "");
    let empty = folder.open("s3://bucket/empty/").unwrap_err();
    assert!(matches!(&empty, ImageFolderError::EmptyClasses { classes, .. } if classes == &["a"]), "{empty}");
    folder.server.put("bucket/flat/1.jpg", "");
    let flat = folder.open("s3://bucket/flat/").unwrap_err();
    assert!(matches!(flat, ImageFolderError::ImagesWithoutClass { .. }), "{flat}");
    let none = folder.open("s3://bucket/none/").unwrap_err();
    assert!(matches!(none, ImageFolderError::Server(_)), "{none}");
    let two = folder.open("s3://bucket/{train,extra}").unwrap_err();
    assert!(two.to_string().contains("neither braces nor wildcards"), "{two}");
}

#[test]
fn a_config_names_a_folder_on_a_server() {
    let folder = Folder::new();
    let keys = serde_json::json!({
        "kind": "image-folder", "path": "s3://bucket/train/", "pixels": "u8", "size": 32,
        "store": {"endpoint": folder.server.url(""), "skip_signature": true, "allow_http": true},
    });
    let config = DatasetConfig::from_json(keys).unwrap();
    let OpenDataset::U8(images) = config.open().unwrap() else { panic!("`pixels` is `u8`") };
    assert_eq!(images.len(), 4);
    let secret = serde_json::json!({"kind": "image-folder", "path": "https://me:secret@host/train/"});
    let shown = serde_json::to_string(&DatasetConfig::from_json(secret).unwrap()).unwrap();
    assert!(!shown.contains("secret"), "{shown}");
}
