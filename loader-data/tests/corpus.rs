//! Replays the inputs of the fuzz targets (`fuzz/`), with deterministic mutations.

#[path = "../fuzz/harness.rs"]
mod harness;
#[path = "../../loader-ipc/fuzz/mutations.rs"]
mod mutations;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use mutations::Mutations;
use nix::sys::resource::{Resource, setrlimit};

type Target = fn(&[u8]) -> usize;

/// The beginning of an input, and the file of `tests/formats/fixtures` that is the rest of it.
type Seed = (&'static [u8], &'static str);

const TARGETS: [(&str, Target, &[Seed]); 10] = [
    ("json_lines", harness::json_lines, &[(b"", "json_lines/json-0.jsonl"), (b"", "arrow/odd.jsonl")]),
    ("text_lines", harness::text_lines, &[(b"", "json_lines/write.py"), (b"", "csv/excel.csv")]),
    ("csv", harness::csv, &[(b"", "csv/excel.csv"), (b"", "csv/plain.csv"), (b"", "csv/part-0.csv")]),
    ("line_index", harness::line_index, &[]),
    ("tar", harness::tar, &[(b"", "tar/gnu.tar"), (b"", "tar/pax.tar")]),
    (
        "arrays",
        harness::arrays,
        &[
            (&[0], "arrays/big-endian.npy"),
            (&[0], "arrays/truth.npy"),
            (&[0], "arrays/fortran.npy"),
            (&[0], "arrays/images-idx3-ubyte"),
            (&[0], "arrays/labels-idx1-ubyte.gz"),
            (&[0], "arrays/weights-idx2-float"),
            (&[0], "arrays/digits.npz"),
            (&[0], "arrays/compressed.npz"),
            (&[1], "arrays/digits.safetensors"),
            (&[2], "arrays/cifar-10.bin"),
            (&[3], "arrays/cifar-100.bin"),
        ],
    ),
    ("megatron", harness::megatron, &[(CORPUS_BYTES, "tokens/corpus.idx")]),
    (
        "arrow",
        harness::arrow,
        &[
            (b"", "arrow/delta.arrows"),
            (b"", "arrow/replaced.arrows"),
            (b"", "arrow/odd.arrow"),
            (b"", "arrow/no-rows.arrow"),
            (b"", "arrow/not-utf8.arrow"),
            (b"", "arrow/pandas.feather"),
        ],
    ),
    ("manifest", harness::manifest, &[]),
    ("cached", harness::cached, &[]),
];

/// Number of bytes of `tokens/corpus.bin`.
const CORPUS_BYTES: &[u8] = &CORPUS_LEN.to_le_bytes();
const CORPUS_LEN: u16 = include_bytes!("formats/fixtures/tokens/corpus.bin").len() as u16;

/// Number of mutations of each input.
const MUTATIONS: u32 = 100;

/// Limit on address space, in bytes: far more than the targets need, and far less than a false length asks
/// for.
const MAX_MEMORY: u64 = 4 << 30;

#[test]
fn no_target_fails_on_its_inputs_or_their_mutations() {
    setrlimit(Resource::RLIMIT_AS, MAX_MEMORY, MAX_MEMORY).unwrap();
    for (name, target, fixtures) in TARGETS {
        let mut mutations = Mutations::new();
        for input in inputs(name, fixtures) {
            target(&input.content);
            for _ in 0..MUTATIONS {
                target(&mutations.mutate(&input.content));
            }
        }
    }
}

/// Seeds of which no sample can be read. They are in the corpus for their errors.
const REFUSED: [(&str, &str); 4] = [
    ("arrays", "arrays/fortran.npy"),
    ("arrow", "arrow/no-rows.arrow"),
    ("manifest", "too-many-archives"),
    ("cached", "edits"),
];

/// Mutations of a seed that is refused would test little but the refusal.
#[test]
fn every_seed_has_samples_unless_listed_as_refused() {
    let mut refused = Vec::new();
    for (name, target, fixtures) in TARGETS {
        let inputs = inputs(name, fixtures).into_iter().filter(|input| target(&input.content) == 0);
        refused.extend(inputs.map(|input| (name, input.name)));
    }
    assert_eq!(refused, REFUSED.map(|(target, name)| (target, name.to_owned())));
}

/// Writes the seeds for `.ci/long fuzz`, if `LOADER_WRITE_CORPUS` names a folder.
#[test]
fn every_target_has_seeds() {
    for (name, _, fixtures) in TARGETS {
        let inputs = inputs(name, fixtures);
        assert!(!inputs.is_empty(), "{name}");
        if let Some(folder) = env::var_os("LOADER_WRITE_CORPUS") {
            let folder = Path::new(&folder).join(name);
            fs::create_dir_all(&folder).unwrap();
            for (number, input) in inputs.iter().enumerate() {
                fs::write(folder.join(format!("seed-{number:02}")), &input.content).unwrap();
            }
        }
    }
}

/// A seed, with the name of its file.
struct Input {
    name: String,
    content: Vec<u8>,
}

/// Returns the seeds of a target: fixtures, and the files of its corpus.
fn inputs(target: &str, fixtures: &[Seed]) -> Vec<Input> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixture = |(prefix, name): &Seed| {
        let file = fs::read(package.join("tests/formats/fixtures").join(name)).unwrap();
        Input { name: (*name).to_owned(), content: [prefix, &file[..]].concat() }
    };
    let mut inputs: Vec<_> = fixtures.iter().map(fixture).collect();
    // A target may have no files of its own.
    let entries = fs::read_dir(package.join("fuzz/corpus").join(target)).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    inputs.extend(files.into_iter().map(|file| Input {
        name: file.file_name().unwrap().to_str().unwrap().to_owned(),
        content: fs::read(file).unwrap(),
    }));
    inputs
}
