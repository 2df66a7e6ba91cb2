//! A program that holds many batches. The test runs alone in a process, because it changes the process's limit on descriptors.

use loader_core::{Error, prelude::*};
use loader_tests::{alone::alone, datasets::Large, processes};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

// PyTorch: U14
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
        // What stays is what an epoch needs if its batches are dropped at once.
        let descriptors = processes::open_descriptors() - before;
        assert!(descriptors < 10, "{descriptors}");
        let mut batches = loader.iter().unwrap();
        assert!(batches.report().shared_memory_bytes < 4 << 20, "{}", batches.report().shared_memory_bytes);
        assert_eq!(batches.by_ref().map(Result::<_, Error>::unwrap).count(), 10_000);
    });
}
