//! Descriptors and memory stay flat over many epochs. The test runs alone in a process, because it counts what the process has.

use loader_core::prelude::*;
use loader_tests::{
    alone::alone,
    datasets::{Fault, Faulty, Large},
    processes,
};

// PyTorch: N21
#[test]
fn nothing_piles_up() {
    alone(|| {
        let temporary =
            || std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(is_socket_folder).count();
        let counts = || (processes::open_descriptors(), processes::mapped_memory());
        let before = counts();
        let loader = DataLoader::builder(Large { count: 40, bytes: 50_000 })
            .batch_size(4)
            .num_workers(3)
            .build()
            .unwrap();
        let run = |epochs: usize| {
            for _ in 0..epochs {
                assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 10);
                drop(loader.iter().unwrap().next());
            }
        };
        run(2);
        let (settled, sockets) = (counts(), temporary());
        run(20);
        assert_eq!(counts(), settled, "they grow with each epoch");
        assert_eq!(temporary(), sockets, "sockets are left behind");
        drop(loader);
        for fault in [Fault::Kill, Fault::Panic] {
            let dataset = Faulty { count: 20, at: 5, fault };
            let faulty = DataLoader::builder(dataset).num_workers(2).build().unwrap();
            faulty.iter().unwrap().for_each(drop);
        }
        let (descriptors, memory) = counts();
        assert_eq!(memory, before.1, "shared memory is left mapped");
        // The signal handler's own, once per process.
        assert!(descriptors <= before.0 + 2, "{descriptors} descriptors, {} at first", before.0);
    });
}

/// ipc-channel's bootstrap sockets: folders named `.tmp` with a socket in them.
fn is_socket_folder(entry: &std::fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(".tmp") && entry.path().join("socket").exists()
}
