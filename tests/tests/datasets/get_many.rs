//! Datasets that load a batch with one call, `get_many`.

use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Many, ManyFault, Noise, many},
    ways::one_epoch,
};
use serde::{Deserialize, Serialize};

fn noise(count: usize) -> Noise {
    Noise { count }
}

/// Each sample is its index and the number of samples that were loaded with it.
#[derive(Serialize, Deserialize)]
struct Asked(usize);

impl Dataset for Asked {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        anyhow::bail!("the loader must call get_many")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<(u64, u64)>> {
        Ok(indices.iter().map(|&index| (index as u64, indices.len() as u64)).collect())
    }
}

/// In PyTorch, a sampler gives lists of indices to a loader without batches for this.
// PyTorch: 21, 36, D02, F01, U27
#[test]
fn get_many_is_called_once_per_batch() {
    let _watchdog = Watchdog::start();
    for shuffle in [false, true] {
        let batches = one_epoch(|way| {
            way.apply(DataLoader::builder(Asked(100)).batch_size(8).shuffle(shuffle)).build()
        });
        let asked: Vec<u64> = batches.iter().map(|(_, asked)| asked.as_slice()[0]).collect();
        assert_eq!(asked, [[8; 12].as_slice(), &[4]].concat());
        let mut all: Vec<u64> = batches.iter().flat_map(|(index, _)| index.as_slice().to_vec()).collect();
        assert_eq!(all.is_sorted(), !shuffle);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
    // A composed dataset calls that of its parts. Batches 2 and 3 are of a member that has no `get_many`.
    let batches = one_epoch(|way| {
        let stack = |part| StackDataset::new((noise(8), part)).unwrap().map(|(_, asked), _| Ok(asked));
        let plain = noise(8).map(|(number, ..), _| Ok((number, 0)));
        let list = ConcatDataset::new([Asked(4), Asked(4)]).unwrap();
        let whole = stack(Asked(8)).concat(plain).concat(list);
        way.apply(DataLoader::builder(whole).batch_size(4)).build()
    });
    let numbers = batches.iter().flat_map(|(number, _)| number.as_slice().to_vec());
    assert!(numbers.eq((0..8).chain(0..8).chain(0..4).chain(0..4)));
    let asked = batches.iter().map(|(_, asked)| asked.as_slice()[0]);
    assert!(asked.eq([4, 4, 0, 0, 4, 4]));
}

// PyTorch: 23, D02
#[test]
fn an_error_of_get_many_names_the_sample_or_those_of_the_batch() {
    let _watchdog = Watchdog::start();
    let cases = [
        (ManyFault::Surplus, vec!["get_many was asked for 1 samples and returned 2"]),
        (ManyFault::Missing, vec!["get_many was asked for 1 samples and returned 0"]),
        (ManyFault::Sample(Fault::Error), vec!["reading record 5", "the disk is on fire"]),
        (ManyFault::Sample(Fault::Panic), vec!["sample 5 panics"]),
    ];
    for (fault, causes) in cases {
        for workers in [0, 2] {
            let faulty = || Many { count: 12, fault };
            let loader = DataLoader::builder(faulty()).batch_size(4).num_workers(workers).build().unwrap();
            let batches: Vec<_> = loader.iter().unwrap().collect();
            assert!(batches[0].is_ok() && batches[2].is_ok() && batches.len() == 3);
            let error = batches[1].as_ref().unwrap_err();
            let Error::DatasetFailed { index, batch: 1, failure, .. } = error else { panic!("{error:?}") };
            assert_eq!(failure.panicked, matches!(fault, ManyFault::Sample(Fault::Panic)));
            // After an error, the loader asks for the samples one by one.
            assert_eq!(*index, (!failure.panicked).then_some(5));
            if failure.panicked {
                assert_eq!(failure.chain[0], "get_many of samples [4, 5, 6, 7]");
            }
            assert_eq!(failure.chain[usize::from(failure.panicked)..], causes);
            // In a stack, the error also names the part.
            let stack = StackDataset::new((noise(12), faulty())).unwrap();
            let loader = DataLoader::builder(stack).batch_size(4).num_workers(workers).build().unwrap();
            let error = loader.iter().unwrap().nth(1).unwrap().unwrap_err();
            let Error::DatasetFailed { failure, .. } = &error else { panic!("{error:?}") };
            if !failure.panicked {
                assert_eq!(failure.chain[0], "dataset 1 of the stack");
                assert_eq!(failure.chain[1..], causes);
            }
        }
    }
}

#[test]
fn an_error_of_a_part_without_get_many_names_the_sample() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let faulty = Faulty { count: 12, at: 5, fault: Fault::Error };
        let stack = StackDataset::new((many(12), faulty)).unwrap().map(|(_, sample), _| Ok(sample));
        let builder = DataLoader::builder(noise(2).map(|_, _| Ok(vec![0])).concat(stack)).batch_size(7);
        let loader = builder.num_workers(workers).collate(|samples| Ok(samples.len())).build().unwrap();
        let error = loader.iter().unwrap().nth(1).unwrap().unwrap_err();
        let Error::DatasetFailed { index: Some(7), failure, .. } = &error else { panic!("{error:?}") };
        let expected = [
            "the second dataset",
            "dataset 1 of the stack",
            "sample 7",
            "reading record 5",
            "the disk is on fire",
        ];
        assert_eq!(failure.chain, expected);
    }
}
