//! A process that runs out of descriptors, at every step. The test runs alone in a process, because it changes the process's limit.

use loader_core::{Error, prelude::*};
use loader_tests::{alone::alone, datasets::Large, processes};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

// PyTorch: 32, P-01, P-24, X14, X16
#[test]
fn running_out_is_an_error_at_every_step_and_passes() {
    alone(|| {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let loader = DataLoader::builder(Large { count: 20, bytes: 10 }).num_workers(2).build().unwrap();
        let used = processes::open_descriptors() as u64;
        for room in 0..40 {
            setrlimit(Resource::RLIMIT_NOFILE, used + room, hard).unwrap();
            let outcome = loader.epoch(0).map(|batches| {
                let (mut held, mut errors) = (Vec::new(), Vec::new());
                // Batches are held, so that each needs a slot, and so a descriptor, of its own.
                for batch in batches {
                    match batch {
                        Ok(batch) => held.push(batch),
                        Err(error) => {
                            errors.push(error);
                            held.drain(1..);
                        }
                    }
                    assert!(errors.len() < 100, "it goes on for ever: {:?}", errors[0]);
                }
                errors
            });
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            match outcome {
                Err(error) => {
                    let text = error.to_string();
                    let typed = matches!(
                        error,
                        Error::WorkerNotStarted { .. }
                            | Error::System { .. }
                            | Error::SharedMemoryExhausted { .. }
                    );
                    assert!(typed && text.contains("open files"), "room for {room}: {text}");
                }
                Ok(errors) => {
                    let all_typed = errors.iter().all(|error| error.to_string().contains("open files"));
                    assert!(all_typed, "room for {room}: {errors:?}");
                }
            }
        }
        assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 20, "it works again with room");
    });
}
