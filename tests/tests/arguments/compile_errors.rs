//! Checks the compiler's errors for wrong programs: one fixture for each, checked with `cargo check` as users
//! do.

use std::{fs, path::Path, process::Command};

/// The beginning of every fixture.
const PRELUDE: &str = "
use loader_core::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Numbers;

impl Dataset for Numbers {
    type Sample = f32;
    fn len(&self) -> usize { 3 }
    fn get(&self, _: usize, _: &mut SampleContext) -> anyhow::Result<f32> { Ok(1.0) }
}

struct Digit { pixels: [f32; 4] }

#[derive(Serialize, Deserialize)]
struct Digits;

impl Dataset for Digits {
    type Sample = Digit;
    fn len(&self) -> usize { 3 }
    fn get(&self, _: usize, _: &mut SampleContext) -> anyhow::Result<Digit> { Ok(Digit { pixels: [0.0; 4] }) }
}
";

/// A fixture's name, the rest of its text, the expected number of errors if it is fixed, and parts of the
/// expected messages.
type Fixture = (&'static str, &'static str, Option<usize>, &'static [&'static str]);

const FIXTURES: &[Fixture] = &[
    (
        "map_captures",
        "fn main() { let mean = 2.0; Numbers.map(|x, _cx| Ok(x - mean)); }",
        Some(1),
        &["`mean` captured here", "to capture, use `map_with`"],
    ),
    (
        "collate_captures",
        "fn main() { let pad = 2.0; let _ = DataLoader::builder(Numbers).collate(move |x| Ok(x[0] - pad)); }",
        Some(1),
        &["`pad` captured here", "to capture, use `collate_with`"],
    ),
    (
        "worker_init_captures",
        "fn main() { let n = 3; let _ = DataLoader::builder(Numbers).worker_init(|_| { println!(\"{n}\"); Ok(()) }); }",
        Some(1),
        &["`n` captured here", "to capture, use `worker_init_with`"],
    ),
    (
        "no_derive",
        "fn main() { let _ = DataLoader::builder(Digits).batch_size(3).build(); }",
        Some(1),
        &["samples of type `Digit` have no default collation", "#[derive(Sample)]", ".collate(...)"],
    ),
    (
        "no_convert",
        "fn main() { let _ = DataLoader::builder(Digits).unbatched().build(); }",
        Some(1),
        &["samples of type `Digit` have no default conversion", "#[derive(Convert)]", ".convert(...)"],
    ),
    (
        "an_enum",
        "#[derive(Sample)] enum Either { A(u8), B(u8) } fn main() {}",
        Some(1),
        &["`Sample` can be derived for a struct only", "`.collate(...)`", "`Keep`"],
    ),
    (
        "lists_of_lists",
        "#[derive(Sample)] struct Boxes { boxes: Vec<Vec<f32>> } fn main() {}",
        None,
        &["`Vec<f32>` cannot be an element of a tensor", "`List<Vec<f32>>`", "`Ragged`", "`Keep`"],
    ),
    (
        "a_stream_given_to_builder",
        "#[derive(Serialize, Deserialize)] struct Lines; impl IterableDataset for Lines { type Sample = u8; fn iter(&self, _: Shard, \
         _: &mut SampleContext) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u8>>> { Ok([Ok(1)].into_iter()) } } fn main() { let \
         _ = DataLoader::builder(Lines); }",
        Some(1),
        &["`Lines` is not a map-style dataset", "`DataLoader::stream(...)`"],
    ),
];

/// Checks a package with a program for each fixture.
#[test]
#[ignore = "checks loader-core again, in a package of its own"]
fn errors_of_the_compiler_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let programs = folder.path().join("src/bin");
    fs::create_dir_all(&programs).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let manifest = format!(
        "[package]\nname = \"fixtures\"\nedition = \"2024\"\n[dependencies]\nanyhow = \"1\"\nserde = \"1\"\nloader-core = {{ path = \
         {:?} }}\n[workspace]\n",
        root.join("loader-core")
    );
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    for (name, program, ..) in FIXTURES {
        fs::write(programs.join(format!("{name}.rs")), format!("{PRELUDE}\n{program}\n")).unwrap();
    }
    for (name, _, count, parts) in FIXTURES {
        let mut command = Command::new(env!("CARGO"));
        command.args(["check", "--quiet", "--offline", "--bin", name]).current_dir(folder.path());
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile-errors");
        let output = command.env("CARGO_TARGET_DIR", target).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{name} compiles");
        let errors =
            text.lines().filter(|line| line.starts_with("error[") || line.starts_with("error: `")).count();
        assert!(errors > 0 && count.is_none_or(|count| errors == count), "{name}: {errors} errors:\n{text}");
        for part in *parts {
            assert!(text.contains(part), "{name} does not say {part:?}:\n{text}");
        }
    }
}
