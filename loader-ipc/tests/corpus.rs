//! Replays the corpus of the fuzz targets (`fuzz/`), with deterministic mutations.

#[path = "../fuzz/harness.rs"]
mod harness;
#[path = "../fuzz/mutations.rs"]
mod mutations;

use std::{fs, path::PathBuf};

use mutations::Mutations;
use nix::sys::resource::{Resource, setrlimit};

type Target = fn(&[u8]);
const TARGETS: [(&str, Target); 5] = [
    ("report", harness::report),
    ("command", harness::command),
    ("lifeline", harness::lifeline),
    ("batch", harness::batch),
    ("attached", harness::attached),
];
/// Number of mutations of each input.
const MUTATIONS: u32 = 400;
/// Limit on address space, in bytes: far more than the targets need, and far less than a false length asks
/// for.
const MAX_MEMORY: u64 = 2 << 30;

#[test]
fn no_target_fails_on_the_corpus_or_its_mutations() {
    setrlimit(Resource::RLIMIT_AS, MAX_MEMORY, MAX_MEMORY).unwrap();
    for (name, target) in TARGETS {
        let mut inputs = harness::seeds().remove(name).unwrap();
        let files = fs::read_dir(corpus(name)).unwrap();
        inputs.extend(files.map(|file| fs::read(file.unwrap().path()).unwrap()));
        let mut random = Mutations::new();
        for input in &inputs {
            target(input);
            (0..MUTATIONS).for_each(|_| target(&random.mutate(input)));
        }
    }
}

/// The corpus contains the messages of well-behaved processes. `LOADER_WRITE_CORPUS=1 cargo test -p
/// loader-ipc --test corpus` writes them.
#[test]
fn the_corpus_contains_the_messages_of_well_behaved_processes() {
    for (name, seeds) in harness::seeds() {
        for (number, seed) in seeds.iter().enumerate() {
            let path = corpus(name).join(format!("honest-{number:02}"));
            if std::env::var_os("LOADER_WRITE_CORPUS").is_some() {
                fs::create_dir_all(corpus(name)).unwrap();
                fs::write(&path, seed).unwrap();
            }
            let stored = fs::read(&path).unwrap_or_default();
            assert_eq!(
                &stored,
                seed,
                "{} is outdated: write the corpus again with LOADER_WRITE_CORPUS=1",
                path.display()
            );
        }
    }
}

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus", target].iter().collect()
}
