//! A program that never calls `loader::init()`. A test program of its own, because every other one calls it before main.

use loader_core::{Error, prelude::*};
use loader_tests::datasets::Noise;

#[test]
fn it_is_told_so_by_build() {
    let error = DataLoader::builder(Noise { count: 10 }).num_workers(2).build().unwrap_err();
    assert!(matches!(error, Error::InitNotCalled { num_workers: 2 }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("loader::init()") && text.contains("first line of main"), "{text}");
}

#[test]
fn it_can_load_without_workers() {
    let loader = DataLoader::builder(Noise { count: 10 }).build().unwrap();
    assert_eq!(loader.iter().unwrap().count(), 10);
}
