//! Programs that hold many batches with few descriptors.

use loader_core::{Error, prelude::*};
use loader_tests::{alone::alone, datasets::Large, processes};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

// PyTorch: 32, 105, P-24, U14
#[test]
fn ten_thousand_small_batches_are_held_with_256_descriptors() {
    alone(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
        let loader = DataLoader::builder(Large { count: 10_000, bytes: 10 }).num_workers(2);
        let loader = loader.shared_memory_limit(1 << 30).build().unwrap();
        let before = processes::open_descriptors();
        let mut batches = loader.iter().unwrap();
        let held: Vec<Tensor<u8>> = batches.by_ref().map(|batch| batch.unwrap()).collect();
        assert_eq!(held.len(), 10_000);
        for (number, batch) in held.iter().enumerate() {
            assert_eq!(batch.as_slice(), [number as u8; 10]);
        }
        assert!(batches.report().shared_memory_bytes >= 10_000 << 16);
        drop((held, batches));
        // The loader keeps what an epoch needs whose batches are dropped at once.
        let descriptors = processes::open_descriptors() - before;
        assert!(descriptors < 10, "{descriptors}");
        let mut batches = loader.iter().unwrap();
        assert!(batches.report().shared_memory_bytes < 4 << 20, "{}", batches.report().shared_memory_bytes);
        assert_eq!(batches.by_ref().map(Result::<_, Error>::unwrap).count(), 10_000);
    });
}

// PyTorch: 32, 105, P-24
#[test]
fn persistent_workers_send_1600_batches_that_are_held_with_100_descriptors() {
    alone(|| {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 100, hard).unwrap();
        let builder = DataLoader::builder(Large { count: 40, bytes: 10 }).num_workers(1);
        let loader = builder.persistent_workers(true).build().unwrap();
        let epochs = (0..40).map(|_| loader.iter().unwrap().map(Result::unwrap).collect::<Vec<_>>());
        let held: Vec<_> = epochs.collect();
        assert!(
            held.iter()
                .flatten()
                .zip((0..40).cycle())
                .all(|(batch, number)| batch.as_slice() == [number; 10])
        );
    });
}
