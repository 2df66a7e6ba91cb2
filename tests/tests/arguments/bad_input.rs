//! Wrong options and wrong datasets: a typed error from `build()` that names the thing and the way out.

use std::time::Duration;

use loader_core::{Builder, Error, LoaderOptions, kind::MapStyle, prelude::*};
use loader_tests::{Watchdog, datasets::Noise};
use serde::{Deserialize, Serialize};

fn noise_dataset() -> Noise {
    Noise { count: 10 }
}

fn noise() -> Builder<MapStyle<Noise>> {
    DataLoader::builder(noise_dataset())
}

/// The error of `build()`, and its text.
fn refused(builder: Builder<MapStyle<Noise>>) -> (Error, String) {
    let error = builder.build().expect_err("it must be refused");
    let text = error.to_string();
    (error, text)
}

fn assert_invalid(builder: Builder<MapStyle<Noise>>, name: &str, hint: &str) {
    let (error, text) = refused(builder);
    assert!(matches!(error, Error::InvalidOption { option, .. } if option == name), "{error:?}");
    assert!(text.starts_with(name) && text.contains(hint), "{text}");
}

// PyTorch: N18
#[test]
fn an_empty_dataset() {
    for workers in [0, 2] {
        let error = DataLoader::builder(Noise { count: 0 }).num_workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::EmptyDataset), "{error:?}");
        assert!(error.to_string().contains("check the path or the filter"), "{error}");
    }
}

#[test]
fn numbers_that_make_no_sense() {
    assert_invalid(noise().batch_size(0), "batch_size", "use 1 or more");
    assert_invalid(noise().num_workers(1_000_000), "num_workers", "more than 4096");
    assert_invalid(noise().num_workers(1).prefetch_factor(0), "prefetch_factor", "use 1 or more");
    assert_invalid(
        noise().num_workers(2).prefetch_factor(usize::MAX / 2 + 1),
        "prefetch_factor",
        "more than 65536",
    );
    assert_invalid(
        noise().num_workers(1).shared_memory_limit(1000),
        "shared_memory_limit",
        "use 65536 or more",
    );
    for seconds in [-1.0, f64::NAN, f64::INFINITY] {
        let mut options = LoaderOptions::default();
        options.timeout = Some(seconds);
        assert_invalid(noise().num_workers(1).options(options), "timeout", "use 0 or more");
    }
}

#[test]
fn options_for_workers_without_workers() {
    assert_invalid(noise().prefetch_factor(2), "prefetch_factor", "set num_workers");
    assert_invalid(noise().timeout(Duration::from_secs(1)), "timeout", "set num_workers");
    assert!(noise().timeout(Duration::ZERO).build().is_ok(), "zero is no timeout");
}

#[test]
fn a_rank_that_is_not() {
    assert_invalid(noise().distributed(3, 3), "rank", "should be in the interval [0, 2]");
    assert_invalid(noise().distributed(0, 0), "world_size", "must be at least 1");
}

#[test]
fn options_that_exclude_each_other() {
    let sampler = || SequentialSampler::new(10);
    let batches = || loader_core::sampler::FixedBatches::new(SequentialSampler::new(10), 2, false);
    let cases = [
        (noise().shuffle(true).sampler(sampler()), ("sampler", "shuffle")),
        (noise().batch_sampler(batches()).batch_size(2), ("batch_sampler", "batch_size")),
        (noise().batch_sampler(batches()).shuffle(true), ("batch_sampler", "shuffle")),
        (noise().batch_sampler(batches()).sampler(sampler()), ("batch_sampler", "sampler")),
        (noise().batch_sampler(batches()).drop_last(true), ("batch_sampler", "drop_last")),
        (noise().batch_sampler(batches()).distributed(0, 2), ("batch_sampler", "rank")),
        (noise().sampler(sampler()).distributed(0, 2), ("sampler", "rank")),
    ];
    for (builder, names) in cases {
        let (error, text) = refused(builder);
        assert!(
            matches!(error, Error::ConflictingOptions { first, second, .. } if (first, second) == names),
            "{error:?}"
        );
        assert!(
            text.contains(names.0) && text.contains(names.1) && text.contains("exclude each other"),
            "{text}"
        );
    }
    assert!(
        noise().batch_sampler(batches()).batch_size(1).build().is_ok(),
        "1 is the default, as in PyTorch"
    );
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
fn a_dataset_that_does_not_survive_encoding() {
    let _watchdog = Watchdog::start();
    for (either, workers) in
        [(Either::Number(7), 0), (Either::Number(7), 1), (Either::Text("seven".into()), 1)]
    {
        let error = DataLoader::builder(SelfDescribing { either }).num_workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::DatasetNotEncodable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("#[serde(untagged)]"), "{text}");
        assert!(!text.contains("serde(skip)"), "skipping a field loses its data: {text}");
    }
}

#[test]
fn parameters_that_bincode_cannot_carry() {
    for workers in [0, 1] {
        let params = serde_json::json!({ "mean": 0.5 });
        let dataset = noise_dataset().map_with(params, |params, (number, ..), _| {
            Ok(number as f64 - params["mean"].as_f64().unwrap_or_default())
        });
        let error = DataLoader::builder(dataset).num_workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::DatasetNotEncodable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("parameters of type `serde_json::value::Value`"), "{text}");
    }
}

#[derive(Serialize, Deserialize)]
struct Forgetful {
    #[serde(skip)]
    rows: Vec<u32>,
}

impl Dataset for Forgetful {
    type Sample = u32;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u32> {
        Ok(self.rows[index])
    }
}

// PyTorch: P-03
#[test]
fn a_dataset_that_loses_its_samples_on_the_way() {
    for workers in [0, 1] {
        let builder = DataLoader::builder(Forgetful { rows: vec![1, 2, 3] }).num_workers(workers);
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains("3 samples before encoding and 0 samples after"), "{error}");
    }
}

#[derive(Serialize, Deserialize)]
struct SkipsItsMean {
    #[serde(skip)]
    mean: f32,
}

impl Dataset for SkipsItsMean {
    type Sample = f32;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<f32> {
        Ok(self.mean)
    }
}

impl IterableDataset for SkipsItsMean {
    type Sample = f32;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<f32>>> {
        Ok(shard.of([Ok(self.mean), Ok(self.mean)]))
    }
}

#[test]
fn a_skipped_field_has_the_same_value_with_any_number_of_workers() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 2] {
        let dataset = || SkipsItsMean { mean: 0.5 };
        let by_index = DataLoader::builder(dataset()).num_workers(workers).build().unwrap();
        let streamed = DataLoader::stream(dataset()).num_workers(workers).build().unwrap();
        for batch in by_index.iter().unwrap().chain(streamed.iter().unwrap()) {
            assert_eq!(batch.unwrap().as_slice(), [0.0], "{workers} workers");
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Nested;

impl Dataset for Nested {
    type Sample = String;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<String> {
        anyhow::ensure!(cx.worker().is_some());
        Ok(match noise().num_workers(1).build() {
            Ok(_) => "built".to_owned(),
            Err(error) => error.kind().to_owned(),
        })
    }
}

// PyTorch: X23
#[test]
fn a_loader_inside_a_worker() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Nested).num_workers(1).build().unwrap();
    assert_eq!(loader.iter().unwrap().next().unwrap().unwrap(), ["LoaderInWorker"]);
}
