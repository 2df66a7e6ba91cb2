//! A program that never calls `loader::init()`. It is a separate test program because all others call it
//! before main.

use loader_core::{Error, prelude::*};
use loader_tests::datasets::Noise;

#[test]
fn build_returns_an_error() {
    let error = DataLoader::builder(Noise { count: 10 }).num_workers(2).build().unwrap_err();
    assert!(matches!(error, Error::InitNotCalled { num_workers: 2 }), "{error:?}");
    assert!(error.to_string().contains("loader::init()"), "{error}");
}

#[test]
fn loading_without_workers_is_possible() {
    let loader = DataLoader::builder(Noise { count: 10 }).build().unwrap();
    assert_eq!(loader.iter().unwrap().count(), 10);
}
