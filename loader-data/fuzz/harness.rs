//! Reads arbitrary bytes as files of the formats that this crate parses itself. The fuzz targets use this, and
//! `tests/corpus.rs`, which replays their inputs. A target fails if it panics, if a false length makes it
//! allocate too much memory, if it does not end, or if two ways to read a file give different samples. It returns the
//! number of samples that it has read, so that a test can tell an input that is accepted.
#![allow(dead_code)] // each target uses one function

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, UNIX_EPOCH},
};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{
    ArrayFormat, ArraysOptions, ArrowOptions, CsvOptions, IndexPlace, IndexStatus, JsonLinesOptions, Record,
    TarOptions, TextLinesOptions, TokenFormat, TokensOptions, check_packed,
};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of samples that are read of a file whose length may be false.
const SAMPLES: usize = 50;

/// Limit on sizes that a file states.
const MAX_BYTES: u64 = 1 << 20;

/// Reads JSON lines at any index, and in blocks.
pub(crate) fn json_lines(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let options = JsonLinesOptions::new(made.file("rows.jsonl", bytes)).index(IndexPlace::None);
    let rows = options.open().expect("an index can be made of any bytes");
    let stream = options.block_bytes(64).open_stream().expect("a stream can be opened on any bytes");
    let found = all(&rows);
    assert_eq!(found, all_in_order(&stream));
    good(&found)
}

/// Reads lines of text at any index and in blocks, and compares them with those that the standard library
/// finds.
pub(crate) fn text_lines(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let options = TextLinesOptions::new(made.file("lines.txt", bytes)).index(IndexPlace::None);
    let lines = all(&options.open().expect("an index can be made of any bytes"));
    let stream = options.block_bytes(64).open_stream().expect("a stream can be opened on any bytes");
    assert_eq!(lines, all_in_order(&stream));

    let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut expected: Vec<&[u8]> = content.split(|&byte| byte == b'\n').collect();
    if expected.last().is_some_and(|last| last.is_empty()) {
        expected.pop();
    }
    let text = |line: &[u8]| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        str::from_utf8(line).ok().map(|line| format!("{line:?}"))
    };
    assert_eq!(lines, expected.into_iter().map(text).collect::<Vec<_>>());
    good(&lines)
}

/// Reads CSV at any index, in blocks of the index, and in order without an index.
pub(crate) fn csv(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let options = CsvOptions::new(made.file("rows.csv", bytes)).index(IndexPlace::None);
    let (rows, stream) = (options.open(), options.open_stream());
    assert_eq!(rows.is_ok(), stream.is_ok());
    let (Ok(rows), Ok(stream)) = (rows, stream) else { return 0 };
    let found = all(&rows);
    assert_eq!(found, all_in_order(&stream));
    assert_eq!(found, all_in_order(&rows.stream().unwrap()));
    good(&found)
}

/// Reads JSON lines with a stored index that has a valid header, and `bytes` as its words.
/// Returns 0 if the index is not used.
pub(crate) fn line_index(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let path = made.file("rows.jsonl", INDEXED.as_bytes());
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    made.file("rows.jsonl.index", &stored_index(&words));
    let options = JsonLinesOptions::new(&path).index(IndexPlace::Beside);
    let status = options.indexes().unwrap()[0].status;
    let rows = options.open().expect("an index that does not fit is made again");
    let found = all(&rows);
    if status == IndexStatus::Current { good(&found) } else { 0 }
}

/// Reads the members of a tar archive in order, and by an index.
pub(crate) fn tar(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let path = made.file("shard.tar", bytes);
    let mut count = 0;
    for allow_missing_end in [false, true] {
        let options = TarOptions::new(&path).index(IndexPlace::None);
        let options = options.max_sample_bytes(MAX_BYTES).allow_missing_end(allow_missing_end);
        let in_order = all_in_order(&options.open().expect("archives are not read when they are opened"));
        // `open_indexed` fails on a damaged archive. The stream returns the samples before the damage.
        if let Ok(indexed) = options.open_indexed() {
            assert_eq!(all(&indexed), in_order);
        }
        count = good(&in_order);
    }
    count
}

/// Reads a file of arrays. The first byte chooses its name or format.
pub(crate) fn arrays(bytes: &[u8]) -> usize {
    let Some((choice, bytes)) = bytes.split_first() else { return 0 };
    let made = TempFiles::new();
    let options = |name: &str| ArraysOptions::new(made.file(name, bytes)).max_unpacked_bytes(MAX_BYTES);
    let options = match choice % 4 {
        0 => options("a.npy"),
        1 => options("a.safetensors"),
        2 => options("a.bin").format(ArrayFormat::Cifar10),
        _ => options("a.bin").format(ArrayFormat::Cifar100),
    };
    options.open().map_or(0, |rows| good(&first_samples(&rows)))
}

/// Reads an index of Megatron. The first two bytes are the number of bytes of the file of tokens.
pub(crate) fn megatron(bytes: &[u8]) -> usize {
    let Some((len, bytes)) = bytes.split_first_chunk() else { return 0 };
    let made = TempFiles::new();
    let path = made.file("corpus.idx", bytes);
    made.file("corpus.bin", &vec![1; u16::from_le_bytes(*len).into()]);
    let options = || TokensOptions::new(&path).format(TokenFormat::Megatron);
    let documents = options().documents(true).max_tokens(100).open();
    let windows = options().window(4).open();
    [documents, windows].into_iter().flatten().map(|rows| good(&first_samples(&rows))).sum()
}

/// Reads an Arrow file or stream at any index, and in order.
pub(crate) fn arrow(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let options = ArrowOptions::new(made.file("rows.arrow", bytes)).max_batch_bytes(MAX_BYTES);
    let (Ok(rows), Ok(stream)) = (options.open(), options.open_stream()) else { return 0 };
    let found = first_samples(&rows);
    for (one, other) in found.iter().zip(in_order(&stream, SAMPLES)) {
        // If one row of a record batch is damaged, the stream returns no row of this batch.
        assert!(other.is_none() || *one == other, "{one:?} {other:?}");
    }
    good(&found)
}

/// Reads the manifest of packed archives, which are all missing. Returns the number of archives.
pub(crate) fn manifest(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    made.file("manifest.jsonl", bytes);
    check_packed(made.0.path()).map_or(0, |(archives, _)| archives)
}

/// Changes bytes in the files of a filled cache. Every three bytes are an edit: an offset into the two files,
/// joined, and the new byte. No sample may be wrong.
pub(crate) fn cached(bytes: &[u8]) -> usize {
    let made = TempFiles::new();
    let read = |made: &TempFiles| {
        let cached = Words.cached(made.0.path(), "1").ok()?;
        Some((0..Words.len()).map(|index| cached.get(index, &mut SampleContext::new(0)).unwrap()).collect())
    };
    let expected: Vec<String> = read(&made).expect("a new cache can be opened");
    let [index, samples] = ["index", "samples"].map(|name| made.0.path().join(name));
    let (mut first, mut second) = (fs::read(&index).unwrap(), fs::read(&samples).unwrap());
    for [low, high, byte] in bytes.as_chunks().0 {
        let len = first.len() + second.len();
        let position = usize::from(u16::from_le_bytes([*low, *high])) % len;
        *first.iter_mut().chain(&mut second).nth(position).expect("it is below the length") = *byte;
    }
    fs::write(index, first).unwrap();
    fs::write(samples, second).unwrap();
    let found = read(&made);
    assert!(found.as_ref().is_none_or(|found| *found == expected));
    found.map_or(0, |found| found.len())
}

/// A folder of files that were written long ago: a file that was just written makes a dataset wait until the
/// clock goes on.
struct TempFiles(TempDir);

impl TempFiles {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        settle(&path);
        path
    }
}

fn settle(path: &Path) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
}

/// Returns each sample as a text; `None` if it is an error.
fn all<D: Dataset<Sample: std::fmt::Debug>>(dataset: &D) -> Vec<Option<String>> {
    (0..dataset.len()).map(|index| get(dataset, index)).collect()
}

/// Number of samples that are no errors.
fn good(samples: &[Option<String>]) -> usize {
    samples.iter().flatten().count()
}

/// Returns the first samples, and reads the last one.
fn first_samples<D: Dataset<Sample = Record>>(dataset: &D) -> Vec<Option<String>> {
    if let Some(last) = dataset.len().checked_sub(1) {
        get(dataset, last);
    }
    (0..dataset.len().min(SAMPLES)).map(|index| get(dataset, index)).collect()
}

fn get<D: Dataset<Sample: std::fmt::Debug>>(dataset: &D, index: usize) -> Option<String> {
    dataset.get(index, &mut SampleContext::new(0)).ok().map(|sample| format!("{sample:?}"))
}

fn all_in_order<D: IterableDataset<Sample: std::fmt::Debug>>(dataset: &D) -> Vec<Option<String>> {
    in_order(dataset, usize::MAX)
}

fn in_order<D: IterableDataset<Sample: std::fmt::Debug>>(dataset: &D, max: usize) -> Vec<Option<String>> {
    let mut cx = SampleContext::new(0);
    let samples = dataset.iter(Shard::new(0, 1), &mut cx).unwrap();
    samples.take(max).map(|sample| sample.ok().map(|sample| format!("{sample:?}"))).collect()
}

/// A file of JSON lines with blank lines between them.
const INDEXED: &str = "{\"a\": 1}\n\n\n{\"a\": 2}\n{\"a\": 3}\n \n{\"a\": 4}";

/// Returns the file of a stored index of [`INDEXED`] with these words.
fn stored_index(words: &[u64]) -> Vec<u8> {
    static HEADER: OnceLock<Vec<u64>> = OnceLock::new();
    let header = HEADER.get_or_init(|| {
        let made = TempFiles::new();
        let path = made.file("rows.jsonl", INDEXED.as_bytes());
        JsonLinesOptions::new(path).index(IndexPlace::Beside).open().unwrap();
        let stored = fs::read(made.0.path().join("rows.jsonl.index")).unwrap();
        stored.as_chunks().0[..5].iter().map(|word| u64::from_ne_bytes(*word)).collect()
    });
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    let mut header = [&header[..], &[words.len() as u64, xxh3_64(&bytes(words))]].concat();
    header.push(xxh3_64(&bytes(&header)));
    [bytes(&header), bytes(words)].concat()
}

/// Texts of different lengths.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Words;

impl Dataset for Words {
    type Sample = String;

    fn len(&self) -> usize {
        5
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<String> {
        Ok("word ".repeat(index))
    }
}
