//! Samples that do not form a batch. The error names the sample, the field and both shapes.

use std::collections::BTreeMap;

use anyhow::ensure;
use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Given, Noise},
};
use serde::{Serialize, de::DeserializeOwned};

/// Checks that the batch of all samples fails because of sample `index`, without workers and with one.
fn check<S>(samples: Vec<S>, index: usize, problem: &str)
where
    S: Sample + Serialize + DeserializeOwned + Clone + Sync,
{
    for workers in [0, 1] {
        let builder = DataLoader::builder(Given(samples.clone())).batch_size(samples.len());
        let batch = builder.num_workers(workers).build().unwrap().iter().unwrap().next().unwrap();
        match batch.map(drop) {
            Err(Error::CollateFailed { index: Some(found), batch: 0, failure, .. }) => {
                assert_eq!(found, index, "{failure:?}");
                assert!(failure.chain[0].starts_with(problem), "{failure:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

// PyTorch: 93, C09, C11, C13, U36
#[test]
fn the_error_names_the_sample_the_field_and_both_shapes() {
    let _watchdog = Watchdog::start();
    let map = |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), 1u8)).collect::<BTreeMap<_, _>>();
    check(vec![map(&["a"]), map(&["a", "b"])], 1, "key \"b\" is new");
    check(vec![map(&["a", "b"]), map(&["a"])], 1, "key \"b\" is missing");
    let list = |len: usize| vec!["X".to_owned(); len];
    check(vec![list(1), list(2)], 1, "the list has 2 items, but the list of the batch's first sample has 1");
    check(vec![list(2), list(1)], 1, "the list has 1 items, but the list of the batch's first sample has 2");
    check(
        vec![vec![0u8; 3], vec![0; 3], vec![0; 4]],
        2,
        "shape [4] differs from the batch's first sample, [3]",
    );
    let lists = |lens: &[usize]| -> (u8, Vec<Tensor<u8>>) {
        (0, lens.iter().map(|&len| Tensor::zeros([len]).unwrap()).collect())
    };
    check(
        vec![lists(&[3, 3]), lists(&[3, 3]), lists(&[3, 3, 3])],
        2,
        "field `1`: the list has 3 items, but the list of the batch's first sample has 2",
    );
    check(
        vec![lists(&[3, 3]), lists(&[3, 4])],
        1,
        "field `1.1`: shape [4] differs from the batch's first sample, [3]",
    );
}

#[test]
fn an_error_of_a_conversion_names_the_sample() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = DataLoader::builder(Noise { count: 4 }).num_workers(workers);
        let builder = builder.convert(|(number, ..)| {
            ensure!(number != 2, "sample 2 cannot be converted");
            Ok(number)
        });
        let items: Vec<_> = builder.build().unwrap().iter().unwrap().collect();
        assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 3);
        let error = items[2].as_ref().unwrap_err();
        let Error::CollateFailed { index: Some(2), batch: 2, failure, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(failure.chain, ["sample 2 cannot be converted"]);
    }
}
