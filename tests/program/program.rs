//! A program that depends on `loader` alone: workers, the derives, and names that the prelude leaves to the
//! program.

// The prelude must not contain these names.
use anyhow::{Context, Error, Ok, Result};
use loader::{Convert, prelude::*, rand::RngExt};
use serde::{Deserialize, Serialize};

loader::init_before_main!();

#[derive(Serialize, Deserialize)]
struct Readings {
    texts: Vec<String>,
}

#[derive(Sample, Convert)]
#[sample(derive(Debug, Clone))]
struct Reading {
    values: [f32; 3],
    name: String,
}

impl Dataset for Readings {
    type Sample = Reading;

    fn len(&self) -> usize {
        self.texts.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> Result<Reading> {
        let name = self.texts.get(index).context("no such reading")?.clone();
        Ok(Reading { values: std::array::from_fn(|n| n as f32 + cx.rng().random::<f32>()), name })
    }
}

fn readings() -> Readings {
    Readings { texts: (0..50).map(|n| format!("reading {n}")).collect() }
}

/// Returns the values and names of one epoch.
fn epoch(workers: usize) -> Result<(Vec<f32>, Vec<String>), Error> {
    let loader =
        DataLoader::builder(readings()).batch_size(8).shuffle(true).seed(5).num_workers(workers).build()?;
    let (mut values, mut names) = (Vec::new(), Vec::new());
    for batch in loader.iter()? {
        let ReadingBatch { values: some, name } = batch?;
        assert_eq!(some.shape(), [name.len(), 3]);
        values.extend_from_slice(some.as_slice());
        names.extend(name);
    }
    Ok((values, names))
}

#[test]
fn batches_do_not_depend_on_the_number_of_workers() {
    let expected = epoch(0).unwrap();
    assert_eq!(expected.1.len(), 50);
    for workers in [1, 3] {
        assert_eq!(epoch(workers).unwrap(), expected, "{workers} workers");
    }
}

#[test]
fn single_samples_are_converted_in_workers() {
    let loader = DataLoader::builder(readings()).unbatched().num_workers(2).build().unwrap();
    let items: Vec<ReadingItem> = loader.iter().unwrap().map(Result::unwrap).collect();
    assert_eq!(items.len(), 50);
    assert_eq!((items[7].values.shape(), &items[7].name[..]), ([3].as_slice(), "reading 7"));
}

#[test]
fn a_state_is_resumed_with_another_number_of_workers() {
    let open = |workers| {
        DataLoader::builder(readings())
            .batch_size(8)
            .shuffle(true)
            .seed(5)
            .num_workers(workers)
            .build()
            .unwrap()
    };
    let mut names = Vec::new();
    let first = open(2);
    let mut batches = first.iter().unwrap();
    names.extend(batches.next().unwrap().unwrap().name);
    let state = serde_json::to_string(&batches.state()).unwrap();
    drop(batches);
    for batch in open(0).resume(&serde_json::from_str(&state).unwrap()).unwrap() {
        names.extend(batch.unwrap().name);
    }
    assert_eq!(names, epoch(0).unwrap().1);
}

#[test]
fn the_error_of_an_option_names_it() {
    let error = DataLoader::builder(readings()).batch_size(0).build().unwrap_err();
    assert!(matches!(error, loader::Error::InvalidOption { option: "batch_size", .. }));
}
