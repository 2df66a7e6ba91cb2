//! The time of reads from a server, of files that a batch reads at the same time.

use std::{
    fs,
    time::{Duration, Instant},
};

use loader_core::{DataLoader, Dataset, PhaseTimes, SampleContext};
use loader_data::{AudioFiles, AudioFilesOptions, ImageFolder, ImageTable, Record, StoreOptions};

use crate::{everywhere::watched, server::Server};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures");

/// One more than a worker reads at the same time. So one thread reads a second file, and the others wait for it.
const FILES: usize = 17;

const LATENCY: Duration = Duration::from_millis(50);

/// Starts a slow server with images and clips.
fn server() -> (Server, StoreOptions) {
    let server = Server::start();
    let read = |name: &str| fs::read(format!("{FIXTURES}/{name}")).unwrap();
    let (image, clip) = (read("images/csv/part/1.jpg"), read("audio/s16.wav"));
    let mut table = "file_name\n".to_owned();
    for number in 0..FILES {
        server.put(&format!("bucket/classes/a/{number:02}.jpg"), image.clone());
        server.put(&format!("bucket/table/{number:02}.jpg"), image.clone());
        server.put(&format!("bucket/clips/{number:02}.wav"), clip.clone());
        table += &format!("{number:02}.jpg\n");
    }
    server.put("bucket/table/metadata.csv", table);
    let options = StoreOptions {
        endpoint: Some(server.url("")),
        skip_signature: true,
        allow_http: true,
        timeout: Duration::from_secs(30),
        ..StoreOptions::default()
    };
    (server, options)
}

/// Returns the times of an epoch of batches of all files. The server is slow meanwhile.
fn times<D: Dataset<Sample: loader_core::Sample> + 'static>(server: &Server, dataset: D) -> PhaseTimes {
    server.set_latency(LATENCY);
    let loader = DataLoader::builder(dataset).batch_size(FILES).build().unwrap();
    let mut batches = loader.iter().unwrap();
    assert_eq!(batches.by_ref().map(Result::unwrap).count(), 1);
    server.set_latency(Duration::ZERO);
    batches.report().times.phases
}

#[test]
fn waits_for_files_that_are_read_together_count_as_reading() {
    let _watched = watched();
    let (server, options) = server();
    // Of a table, each file takes two requests.
    let clips = options.scope(|| AudioFiles::open("s3://bucket/clips/")).unwrap();
    let images = options.scope(|| ImageFolder::open("s3://bucket/classes/")).unwrap();
    let table = options.scope(|| ImageTable::open("s3://bucket/table/")).unwrap();
    for (times, latencies) in
        [(times(&server, clips), 2), (times(&server, images), 2), (times(&server, table), 4)]
    {
        assert!(times.read >= latencies * LATENCY, "{times:?}");
        // If a wait counted as fetching, the time of fetching would be the longer one.
        assert!(times.fetch < times.read, "{times:?}");
    }
}

#[test]
fn files_on_a_server_are_read_together_in_a_list_with_local_files() {
    let _watched = watched();
    let (server, store) = server();
    let local = format!("{FIXTURES}/audio/s16.wav");
    let paths = [local.as_str(), "s3://bucket/clips/", local.as_str()];
    let clips = AudioFilesOptions::new_all(paths).store(store).open().unwrap();
    server.set_latency(LATENCY);
    let indices: Vec<usize> = (0..clips.len()).collect();
    let start = Instant::now();
    let samples: Vec<Record> = clips.get_many(&indices, &mut SampleContext::new(0)).unwrap();
    assert_eq!(samples.len(), FILES + 2);
    assert!(start.elapsed() < LATENCY * FILES as u32 / 2, "{:?}", start.elapsed());
}
