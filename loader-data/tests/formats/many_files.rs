//! Datasets of more files than a worker keeps open.

use std::fs;

use loader_core::{Dataset, SampleContext};
use loader_data::{RecordConfig, Records};

use crate::{
    everywhere::watched,
    read_ahead::{FIXTURES, options},
    server::Server,
};

const FILES: usize = 100;

#[test]
fn random_rows_of_many_parquet_files_fetch_each_index_of_pages_once() {
    let _watched = watched();
    let server = Server::start();
    let file = fs::read(format!("{FIXTURES}/parquet/train-00001-of-00002.parquet")).unwrap();
    (0..FILES).for_each(|number| server.put(&format!("bucket/{number:02}.parquet"), file.clone()));
    let config = r#"{"kind": "parquet", "path": "s3://bucket/{00..99}.parquet", "cache_bytes": 0}"#;
    let config: RecordConfig = serde_json::from_str(config).unwrap();
    let Records::Map(rows) = options(&server).scope(|| config.open()).unwrap() else { panic!("a stream") };
    let rows_of_file = rows.len() / FILES;
    server.requests();
    let requests = || {
        let mut cx = SampleContext::new(0);
        (0..FILES).for_each(|file| drop(rows.get(file * rows_of_file, &mut cx).unwrap()));
        server.requests().len()
    };
    let first = requests();
    assert_eq!(requests(), first - FILES, "the pages themselves are fetched again");
}
