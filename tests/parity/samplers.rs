//! Samplers and batch samplers.

use loader_core::{prelude::*, sampler::Epoch};
use loader_tests::Watchdog;
use serde::{Deserialize, Serialize};

use crate::support::{Count, numbers, one_epoch, two_epochs};

/// Indices as they are.
#[derive(Debug)]
struct Given(Vec<usize>);

impl Sampler for Given {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.0.clone().into_iter())
    }
}

/// Batches as they are.
#[derive(Debug)]
struct GivenBatches(Vec<Vec<usize>>);

impl BatchSampler for GivenBatches {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new(self.0.clone().into_iter())
    }
}

#[test]
fn row_072_any_order_of_indices() {
    let _watchdog = Watchdog::start();
    for indices in [(2..12).collect::<Vec<_>>(), vec![9, 9, 0, 3], vec![]] {
        let epochs = two_epochs(|way| {
            let builder = DataLoader::builder(Count(100)).sampler(Given(indices.clone())).batch_size(2);
            let loader = way.of(builder).build()?;
            assert_eq!(loader.len(), Some(indices.len().div_ceil(2)));
            Ok(loader)
        });
        for batches in epochs {
            let found = numbers(&batches).concat();
            assert!(found.into_iter().map(|index| index as usize).eq(indices.iter().copied()));
        }
    }
}

#[test]
fn row_073_batches_of_different_sizes() {
    let _watchdog = Watchdog::start();
    let given: Vec<Vec<usize>> =
        (0..20).step_by(5).flat_map(|n| [vec![n, n + 1], vec![n + 2, n + 3, n + 4]]).collect();
    let batches = one_epoch(|way| {
        let loader =
            way.of(DataLoader::builder(Count(20)).batch_sampler(GivenBatches(given.clone()))).build()?;
        assert_eq!(loader.len(), Some(8));
        Ok(loader)
    });
    let found: Vec<Vec<usize>> =
        numbers(&batches).iter().map(|batch| batch.iter().map(|&index| index as usize).collect()).collect();
    assert_eq!(found, given);
}

/// Reads a whole batch at once, and says how many samples it was asked for.
#[derive(Serialize, Deserialize)]
struct Bulk;

impl Dataset for Bulk {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        100
    }

    fn get(&self, _index: usize, _cx: &mut Context) -> anyhow::Result<(u64, u64)> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut Context) -> anyhow::Result<Vec<(u64, u64)>> {
        Ok(indices.iter().map(|&index| (index as u64, indices.len() as u64)).collect())
    }
}

/// In PyTorch a sampler gives lists of indices to a loader without batches; here `get_many` gets those of a batch, from any sampler.
#[test]
fn row_036_bulk_loading() {
    let _watchdog = Watchdog::start();
    for shuffle in [false, true] {
        let batches =
            one_epoch(|way| way.of(DataLoader::builder(Bulk).batch_size(8).shuffle(shuffle)).build());
        let asked: Vec<u64> = batches.iter().map(|(_, asked)| asked.as_slice()[0]).collect();
        assert_eq!(asked, [[8; 12].as_slice(), &[4]].concat());
        let mut all: Vec<u64> = batches.iter().flat_map(|(index, _)| index.as_slice().to_vec()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
}

/// PyTorch asks for the sampler's iterator once, or twice in its first epoch with workers; here once an epoch, everywhere.
#[test]
fn a35_the_sampler_is_asked_once_an_epoch() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);
    impl Sampler for Counted {
        fn len(&self) -> usize {
            4
        }

        fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
            self.0.fetch_add(1, Ordering::SeqCst);
            SequentialSampler::new(4).indices(epoch)
        }
    }
    let _watchdog = Watchdog::start();
    for way in crate::support::WAYS {
        let calls = Arc::new(AtomicUsize::new(0));
        let loader =
            way.of(DataLoader::builder(Count(4)).sampler(Counted(Arc::clone(&calls)))).build().unwrap();
        for epoch in 1..=3 {
            assert_eq!(loader.iter().unwrap().count(), 4);
            assert_eq!(calls.load(Ordering::SeqCst), epoch, "{way:?}");
        }
    }
}
