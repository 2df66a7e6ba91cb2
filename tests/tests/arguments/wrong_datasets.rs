//! Datasets that `build()` refuses: empty ones, and those that lose data when they are encoded for workers.

use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting},
};
use serde::{Deserialize, Serialize};

/// An iterable dataset may be empty.
// PyTorch: N18
#[test]
fn an_empty_map_style_dataset_is_refused() {
    for workers in [0, 2] {
        let error = DataLoader::builder(Count(0)).num_workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::EmptyDataset), "{error:?}");
        let stream = DataLoader::stream(Counting { count: 0 }).num_workers(workers).build().unwrap();
        assert!(stream.is_empty());
        assert_eq!(stream.iter().unwrap().count(), 0);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u32),
    Text(String),
}

#[derive(Serialize, Deserialize)]
struct SelfDescribing {
    either: Either,
}

impl Dataset for SelfDescribing {
    type Sample = u32;

    fn len(&self) -> usize {
        3
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u32> {
        Ok(match &self.either {
            Either::Number(number) => *number,
            Either::Text(text) => text.len() as u32,
        })
    }
}

// PyTorch: P-03
#[test]
fn a_dataset_that_cannot_be_encoded_is_refused() {
    for (either, workers) in
        [(Either::Number(7), 0), (Either::Number(7), 1), (Either::Text("seven".into()), 1)]
    {
        let error = DataLoader::builder(SelfDescribing { either }).num_workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::DatasetNotEncodable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("#[serde(untagged)]"), "{text}");
        assert!(!text.contains("serde(skip)"), "the advice must not lose data: {text}");
    }
}

#[test]
fn parameters_of_a_function_that_cannot_be_encoded_are_refused_by_type() {
    for workers in [0, 1] {
        let params = serde_json::json!({ "mean": 0.5 });
        let dataset = Count(10).map_with(params, |params, number, _| {
            Ok(number as f64 - params["mean"].as_f64().unwrap_or_default())
        });
        let error = DataLoader::builder(dataset).num_workers(workers).build().unwrap_err();
        let Error::DatasetNotEncodable { problem } = &error else { panic!("{error:?}") };
        assert!(problem.contains("parameters of type `serde_json::value::Value`"), "{problem}");
    }
}

/// Two samples, whose field `rows` or `mean` the encoding loses.
#[derive(Serialize, Deserialize)]
struct Skipping {
    len: Option<usize>,
    #[serde(skip)]
    rows: Vec<u32>,
    #[serde(skip)]
    mean: f32,
}

impl Dataset for Skipping {
    type Sample = f32;

    fn len(&self) -> usize {
        self.len.unwrap_or(self.rows.len())
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<f32> {
        Ok(self.mean)
    }
}

impl IterableDataset for Skipping {
    type Sample = f32;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<f32>>> {
        Ok(shard.of([Ok(self.mean), Ok(self.mean)]))
    }
}

// PyTorch: P-03
#[test]
fn a_dataset_whose_length_changes_when_it_is_encoded_is_refused() {
    for workers in [0, 1] {
        let dataset = Skipping { len: None, rows: vec![1, 2, 3], mean: 0.5 };
        let error = DataLoader::builder(dataset).num_workers(workers).build().unwrap_err();
        let Error::DatasetNotEncodable { problem } = &error else { panic!("{error:?}") };
        assert!(problem.contains("3 samples before encoding and 0 samples after"), "{problem}");
    }
}

#[test]
fn a_field_that_is_not_encoded_has_its_default_with_any_number_of_workers() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 2] {
        let dataset = || Skipping { len: Some(2), rows: vec![], mean: 0.5 };
        let by_index = DataLoader::builder(dataset()).num_workers(workers).build().unwrap();
        let streamed = DataLoader::stream(dataset()).num_workers(workers).build().unwrap();
        let batches: Vec<_> = by_index.iter().unwrap().chain(streamed.iter().unwrap()).collect();
        assert_eq!(batches.len(), 4);
        assert!(batches.iter().all(|batch| batch.as_ref().unwrap().as_slice() == [0.0]), "{workers} workers");
    }
}

#[derive(Serialize, Deserialize)]
struct BuildsALoader;

impl Dataset for BuildsALoader {
    type Sample = String;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<String> {
        anyhow::ensure!(cx.worker().is_some());
        Ok(match DataLoader::builder(Count(10)).num_workers(1).build() {
            Ok(_) => "built".to_owned(),
            Err(error) => error.kind().to_owned(),
        })
    }
}

// PyTorch: X23
#[test]
fn a_loader_inside_a_worker_is_refused() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(BuildsALoader).num_workers(1).build().unwrap();
    assert_eq!(loader.iter().unwrap().next().unwrap().unwrap(), ["LoaderInWorker"]);
}
