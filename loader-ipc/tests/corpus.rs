//! Replays the corpus of the fuzz targets (`fuzz/`), with deterministic mutations.

#[path = "../fuzz/harness.rs"]
mod harness;

use std::{fs, path::PathBuf};

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
        let mut random = Random(0);
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

/// A deterministic random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn mutate(&mut self, input: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            let offset = self.below(bytes.len());
            match self.below(6) {
                0 => bytes.truncate(offset),
                1 => bytes.extend((0..self.below(40)).map(|byte| byte as u8)),
                2 => bytes.iter_mut().skip(offset).take(1).for_each(|byte| *byte ^= 1 << (offset % 8)),
                // Writes a number at which lengths and offsets are likely to overflow or to leave a range.
                kind => {
                    let edges = [0, 1, 63, 64, 4095, 4096, 4097, 1 << 32, 1 << 60, u64::MAX - 63, u64::MAX];
                    let number = edges[self.below(edges.len())].to_le_bytes();
                    let offset = if kind == 3 { offset } else { offset / 8 * 8 };
                    bytes.iter_mut().skip(offset).zip(number).for_each(|(byte, new)| *byte = new);
                }
            }
        }
        bytes
    }
}
