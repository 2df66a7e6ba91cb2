use std::{
    cell::Cell,
    collections::{BTreeSet, HashSet},
    fmt::Debug,
    fs,
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt, chown, symlink},
};

use anyhow::Context;
use nix::{
    sys::stat::Mode,
    unistd::{geteuid, mkfifo},
};
use proptest::prelude::*;
use rand::Rng;
use tempfile::TempDir;

use super::*;
use crate::{Tensor, data::dataset::TensorDataset};

thread_local! {
    /// Samples that `Texts` computed in this thread.
    static COMPUTED: Cell<usize> = const { Cell::new(0) };
}

/// Sample `i` is `i`, and a text whose length depends on `i`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Texts {
    len: usize,
    /// True if it has a `get_many`.
    many: bool,
    draws: Draws,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Draws {
    Nothing,
    /// Asks for the generator, as a transform without random steps does.
    NothingFromSample,
    FromSample,
    FromEpoch,
}

impl Dataset for Texts {
    type Sample = (u64, String);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        COMPUTED.set(COMPUTED.get() + 1);
        match self.draws {
            Draws::Nothing => {}
            Draws::NothingFromSample => _ = cx.rng(),
            Draws::FromSample => _ = cx.rng().next_u64(),
            Draws::FromEpoch => drop(cx.epoch_rng()),
        }
        Ok(text(index))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Self::Sample>> {
        if self.many {
            indices.iter().map(|&index| self.get(index, cx)).collect()
        } else {
            many::decline(self, indices, cx)
        }
    }

    fn fingerprint(&self) -> String {
        self.name.clone()
    }
}

fn text(index: usize) -> (u64, String) {
    (index as u64, index.to_string().repeat(index % 5 * 10))
}

fn texts(len: usize) -> Texts {
    Texts { len, many: false, draws: Draws::Nothing, name: "texts".to_owned() }
}

/// Number of samples that a process has computed only to compare them with the cache.
fn compared(cached: &Cached<Texts>) -> usize {
    usize::from(cached.comparison.get() == Some(&Comparison::Equal))
}

/// Opens the cache as a process that has just started does. Returns the number of samples that are computed
/// because they are absent, if all are loaded.
fn computed(folder: &TempDir, len: usize) -> usize {
    let cached = texts(len).cached(folder, "1").unwrap();
    let before = COMPUTED.get();
    let mut cx = SampleContext::new(0);
    for index in 0..len {
        assert_eq!(cached.get(index, &mut cx).unwrap(), text(index));
    }
    COMPUTED.get() - before - compared(&cached)
}

/// The offset of the first entry.
fn first_entry(folder: &TempDir) -> usize {
    let index = fs::File::open(folder.path().join("index")).unwrap();
    let identity::Header::Valid(_, _, entries) = identity::Header::read(&index).unwrap() else {
        panic!("damaged")
    };
    entries as usize
}

#[test]
fn samples_are_computed_once() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(computed(&folder, 20), 20);
    assert_eq!(computed(&folder, 20), 0);
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["index", "samples"]);
}

#[test]
fn get_many_computes_only_what_is_absent() {
    for many in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let cached = Texts { many, ..texts(10) }.cached(&folder, "1").unwrap();
        let mut cx = SampleContext::new(0);
        cached.get(3, &mut cx).unwrap();
        let before = COMPUTED.get();
        assert_eq!(cached.get_many(&[5, 3, 4], &mut cx).unwrap(), [5, 3, 4].map(text));
        assert_eq!(COMPUTED.get() - before, 2);
        let probed = many::try_get_many(&cached, &[1, 3, 2], &mut cx).unwrap();
        assert_eq!(probed, many.then(|| [1, 3, 2].map(text).to_vec()));
        let probed = many::try_get_many(&cached, &[3, 4], &mut cx).unwrap();
        assert_eq!(probed, Some([3, 4].map(text).to_vec()), "what is in the cache is read together");
    }
}

#[test]
fn a_flipped_bit_makes_a_sample_absent() {
    let folder = tempfile::tempdir().unwrap();
    computed(&folder, 8);
    let [index, samples] = ["index", "samples"].map(|name| folder.path().join(name));
    let (whole_index, whole_samples) = (fs::read(&index).unwrap(), fs::read(&samples).unwrap());
    for byte in first_entry(&folder)..whole_index.len() {
        let mut damaged = whole_index.clone();
        damaged[byte] ^= 1 << (byte % 8);
        fs::write(&index, damaged).unwrap();
        assert_eq!(computed(&folder, 8), 1, "byte {byte} of the index");
        assert_eq!(computed(&folder, 8), 0, "it was not stored again");
        fs::write(&samples, &whole_samples).unwrap();
    }
    for byte in 0..whole_samples.len() {
        let mut damaged = whole_samples.clone();
        damaged[byte] ^= 1 << (byte % 8);
        fs::write(&samples, damaged).unwrap();
        fs::write(&index, &whole_index).unwrap();
        assert_eq!(computed(&folder, 8), 1, "byte {byte} of the samples");
        assert_eq!(computed(&folder, 8), 0, "it was not stored again");
    }
}

#[test]
fn torn_entries_and_truncated_files_make_samples_absent() {
    let folder = tempfile::tempdir().unwrap();
    computed(&folder, 8);
    let [index, samples] = ["index", "samples"].map(|name| folder.path().join(name));
    let (whole_index, whole_samples) = (fs::read(&index).unwrap(), fs::read(&samples).unwrap());
    let entries = first_entry(&folder);
    for written in 0..ENTRY_BYTES {
        // The beginning of a new entry over the old one, which is absent or that of another sample.
        for old in [[0; ENTRY_BYTES].as_slice(), &whole_index[entries..][..ENTRY_BYTES]] {
            let mut torn = whole_index.clone();
            let offset = entries + 3 * ENTRY_BYTES + written;
            torn[offset..][..ENTRY_BYTES - written].copy_from_slice(&old[written..]);
            fs::write(&index, torn).unwrap();
            fs::write(&samples, &whole_samples).unwrap();
            assert!(computed(&folder, 8) <= 1);
            assert_eq!(computed(&folder, 8), 0);
        }
    }
    for (path, start, whole) in [(&index, entries, &whole_index), (&samples, 0, &whole_samples)] {
        for len in start..whole.len() {
            fs::write(&index, &whole_index).unwrap();
            fs::write(&samples, &whole_samples).unwrap();
            fs::write(path, &whole[..len]).unwrap();
            // A missing byte of an entry is read as 0, which may be the right value.
            let is_lost = whole[len..].iter().any(|&byte| byte != 0);
            assert_eq!(computed(&folder, 8) > 0, is_lost, "{} bytes of {}", len, path.display());
            assert_eq!(computed(&folder, 8), 0);
        }
    }
    fs::remove_file(&samples).unwrap();
    assert_eq!(computed(&folder, 8), 8);
}

const ENTRY_BYTES: usize = store::ENTRY;

proptest! {
    // Each case flushes a new index to the disk.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn arbitrary_bytes_are_never_a_wrong_sample(
        entries in prop::collection::vec(any::<u8>(), 0..300),
        samples in prop::collection::vec(any::<u8>(), 0..300),
        at in 0..250_u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        computed(&folder, 8);
        let start = first_entry(&folder) as u64;
        let open = |name: &str| fs::OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
        open("index").write_all_at(&entries, start + at).unwrap();
        open("samples").write_all_at(&samples, at).unwrap();
        computed(&folder, 8);
        prop_assert_eq!(computed(&folder, 8), 0);
    }

    /// Each step is a process that computes a sample, or reads one, or is killed in the middle of a write.
    #[test]
    fn processes_share_the_cache_in_any_order(
        steps in prop::collection::vec((0..3_usize, 0..12_usize, any::<bool>()), 1..60),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let processes = [(); 3].map(|()| texts(12).cached(&folder, "1").unwrap());
        let mut asked = BTreeSet::new();
        let before = COMPUTED.get();
        for (process, index, is_killed) in steps {
            if is_killed {
                let path = folder.path().join("samples");
                let mut samples = fs::OpenOptions::new().append(true).open(path).unwrap();
                samples.write_all(&text(index).1.as_bytes()[index % 5..]).unwrap();
                continue;
            }
            let sample = processes[process].get(index, &mut SampleContext::new(0)).unwrap();
            prop_assert_eq!(sample, text(index));
            asked.insert(index);
        }
        let compared: usize = processes.iter().map(compared).sum();
        prop_assert_eq!(COMPUTED.get() - before, asked.len() + compared);
    }
}

/// Returns the part that differs, and the text of the error.
fn difference<D: Dataset<Sample: Serialize + DeserializeOwned> + Debug>(
    folder: &TempDir,
    dataset: D,
    version: &str,
) -> (CachePart, String) {
    let error = dataset.cached(folder, version).unwrap_err();
    let text = error.to_string();
    let CacheError::Differs { part, .. } = error else { panic!("{error}") };
    (part, text)
}

#[test]
fn a_cache_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    computed(&folder, 8);
    let (part, text) = difference(&folder, texts(8), "2");
    assert_eq!(part, CachePart::Version);
    assert!(text.ends_with(
        "does not fit: its version is `1`, that of the dataset is `2`; remove the folder to fill the cache again, or \
         name another folder"
    ));
    assert_eq!(difference(&folder, texts(9), "1").0, CachePart::Len);
    let renamed = Texts { name: "other".to_owned(), ..texts(8) };
    assert_eq!(difference(&folder, renamed, "1").0, CachePart::Fingerprint);
    let mapped = texts(8).map(|(number, _), _cx| Ok(number));
    let (part, text) = difference(&folder, mapped, "1");
    assert_eq!(part, CachePart::SampleType);
    assert!(text.contains("is `(u64, alloc::string::String)`, that of the dataset is `u64`"), "{text}");
    assert_eq!(computed(&folder, 8), 0, "a refusal changes nothing");
}

/// Sample `i` is a text of `i` and `corpus`, which the fingerprint does not have. Without `corpus`, it has no samples.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Corpus {
    corpus: Option<char>,
    panics: bool,
}

impl Dataset for Corpus {
    type Sample = String;

    fn len(&self) -> usize {
        4
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<String> {
        unreachable!("there is `get_many`")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<String>> {
        COMPUTED.set(COMPUTED.get() + 1);
        assert!(!self.panics, "the files have gone");
        let corpus = self.corpus.context("the files have gone")?;
        Ok(indices.iter().map(|index| format!("{corpus}{index}")).collect())
    }
}

#[test]
fn a_cache_of_another_dataset_with_the_same_fingerprint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |corpus: Option<char>, panics| Corpus { corpus, panics }.cached(&folder, "1").unwrap();
    let mut cx = SampleContext::new(0);
    let first = open(Some('a'), false);
    assert_eq!(first.get_many(&[0, 1, 2], &mut cx).unwrap(), ["a0", "a1", "a2"]);
    let other = open(Some('b'), false);
    for index in [3, 2, 0] {
        // Also a sample that is not stored: what this process would store, the other dataset would read.
        for error in [other.get(index, &mut cx).unwrap_err(), other.get_many(&[index], &mut cx).unwrap_err()]
        {
            assert!(
                matches!(error.downcast_ref(), Some(CacheError::OtherSample { index: 0, .. })),
                "{error}"
            );
        }
    }
    // A dataset that fails cannot be compared. It is not asked for each sample.
    for panics in [false, true] {
        let gone = open(None, panics);
        let before = COMPUTED.get();
        for _ in 0..5 {
            assert_eq!(gone.get_many(&[2, 1], &mut cx).unwrap(), ["a2", "a1"]);
        }
        assert_eq!(COMPUTED.get() - before, ATTEMPTS as usize);
    }
    assert_eq!(open(Some('a'), false).get_many(&[3, 1], &mut cx).unwrap(), ["a3", "a1"]);
}

#[test]
fn samples_whose_encoding_has_no_fixed_order_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let set = |sample: (u64, String), _cx: &mut SampleContext| Ok((0..sample.0).collect::<HashSet<_>>());
        texts(4).map(set).cached(&folder, "1").unwrap()
    };
    let mut cx = SampleContext::new(0);
    for index in [2, 3] {
        let computed = open().get(index, &mut cx).unwrap();
        for _ in 0..20 {
            assert_eq!(open().get(index, &mut cx).unwrap(), computed);
        }
    }
}

#[test]
fn samples_that_vary_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let count = |_: (u64, String), _cx: &mut SampleContext| Ok(COMPUTED.get() as u64);
        texts(4).map(count).cached(&folder, "1").unwrap()
    };
    let mut cx = SampleContext::new(0);
    let computed = open().get(2, &mut cx).unwrap();
    let again = open();
    assert_eq!(again.get(2, &mut cx).unwrap(), computed);
    assert_eq!(again.comparison.get(), Some(&Comparison::Varies));
}

#[test]
fn the_sample_that_is_compared_is_found_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let len = 3 * 4096;
    let mut cx = SampleContext::new(0);
    texts(len).cached(&folder, "1").unwrap().get(5000, &mut cx).unwrap();
    for wanted in [0, 4999, 5000, 5001, len - 1] {
        let cached = texts(len).cached(&folder, "1").unwrap();
        let found = cached.store().unwrap().first_from(wanted, len).unwrap();
        assert_eq!(found.map(|(index, _)| index), Some(5000), "from {wanted}");
    }
}

#[test]
fn a_comparison_changes_neither_the_index_nor_a_generator() {
    let folder = tempfile::tempdir().unwrap();
    let draws = |many: bool| {
        let cached = Texts { many, ..texts(8) }.cached(&folder, "1").unwrap();
        let mut cx = SampleContext::new(0);
        cx.set_index(5);
        let first = cx.rng().next_u64();
        // A dataset around the cache draws before and after it, and asks for another sample than its own.
        let sample = if many {
            cached.get_many(&[2], &mut cx).unwrap().remove(0)
        } else {
            cached.get(2, &mut cx).unwrap()
        };
        assert_eq!(sample, text(2));
        (first, cx.rng().next_u64(), cx.index(), compared(&cached))
    };
    let (first, second, index, _) = draws(false);
    for many in [false, true] {
        assert_eq!(draws(many), (first, second, index, 1));
    }
}

#[test]
fn a_damaged_header_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    computed(&folder, 2);
    let index = folder.path().join("index");
    let whole = fs::read(&index).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&index, bytes).unwrap();
        texts(2).cached(&folder, "1").unwrap_err()
    };
    let header = 5 * size_of::<u64>()
        + codec::encode(&("1", "(u64, alloc::string::String)", 2_u64, "texts")).unwrap().len();
    for byte in 0..header {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << (byte % 8);
        match refused(&damaged) {
            CacheError::NotACache { .. } => {}
            CacheError::Differs { part: CachePart::Format, .. } if (8..16).contains(&byte) => {}
            error => panic!("byte {byte}: {error}"),
        }
        assert!(matches!(refused(&whole[..byte]), CacheError::NotACache { .. }), "cut after {byte} bytes");
    }
}

#[test]
fn what_is_not_a_file_or_a_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |cache: &Path| match texts(2).cached(cache, "1").unwrap_err() {
        CacheError::System { source, .. } => source.to_string(),
        error => panic!("{error}"),
    };
    fs::write(folder.path().join("file"), "").unwrap();
    refused(&folder.path().join("file"));
    for name in ["index", "samples"] {
        let cache = folder.path().join(format!("with a pipe as {name}"));
        fs::create_dir(&cache).unwrap();
        mkfifo(&cache.join(name), Mode::S_IRWXU).unwrap();
        assert!(refused(&cache).contains("is not a regular file"));
        let cache = folder.path().join(format!("with a folder as {name}"));
        fs::create_dir_all(cache.join(name)).unwrap();
        refused(&cache);
    }
}

#[test]
fn what_other_users_can_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let open = || texts(2).cached(&cache, "1");
    let refused = || match open().unwrap_err() {
        CacheError::System { source, .. } => source.to_string(),
        error => panic!("{error}"),
    };
    // A link to a file of this user, which must not grow.
    let victim = folder.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    fs::create_dir(&cache).unwrap();
    symlink(&victim, cache.join("samples")).unwrap();
    assert!(refused().contains("samples is not a regular file"));
    fs::remove_dir_all(&cache).unwrap();
    drop(open().unwrap());
    for path in [cache.clone(), cache.join("index"), cache.join("samples")] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(before.mode() | 0o020)).unwrap();
        assert!(refused().contains("other users may write to"), "{}", path.display());
        fs::set_permissions(&path, before).unwrap();
        if geteuid().is_root() {
            chown(&path, Some(4321), None).unwrap();
            assert!(refused().contains("belongs to user 4321"), "{}", path.display());
            chown(&path, Some(0), None).unwrap();
        } else {
            println!("SKIPPED: a cache of another user: only root can make one");
        }
    }
    open().unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
}

#[test]
fn random_samples_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut cx = SampleContext::new(0);
    let index_of = |error: anyhow::Error| match error.downcast_ref() {
        Some(CacheError::RandomSample { index, .. }) => *index,
        _ => panic!("{error}"),
    };
    for draws in [Draws::FromSample, Draws::FromEpoch] {
        for many in [false, true] {
            let cached = Texts { draws, many, ..texts(8) }.cached(&folder, "1").unwrap();
            assert_eq!(index_of(cached.get(5, &mut cx).unwrap_err()), 5);
            assert_eq!(index_of(cached.get_many(&[6, 7], &mut cx).unwrap_err()), 6);
        }
    }
    let random = texts(8).map(|(number, _), cx| Ok((number ^ cx.rng().next_u64(), String::new())));
    let mapped = random.cached(folder.path().join("mapped"), "1").unwrap();
    let error = mapped.get(2, &mut cx).unwrap_err();
    assert!(error.to_string().ends_with("draw them in a `map` after `cached`"), "{error}");
    let asks = Texts { draws: Draws::NothingFromSample, ..texts(8) }.cached(&folder, "1").unwrap();
    assert_eq!(asks.get(3, &mut cx).unwrap(), text(3));
    // A dataset around the cache may draw, before and after it.
    cx.rng().next_u64();
    let after = texts(8).cached(&folder, "1").unwrap().map(|sample, cx| Ok((sample, cx.rng().next_u64())));
    let (sample, first) = after.get(2, &mut cx).unwrap();
    assert_eq!((sample, after.get(2, &mut cx).unwrap().1), (text(2), first), "read as computed");
    assert_eq!(computed(&folder, 8), 6, "no random sample was stored");
}

#[test]
fn a_full_cache_computes_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let cached = texts(8).cached(&folder, "1").unwrap().max_bytes(100);
    for round in 0..2 {
        for index in 0..8 {
            assert_eq!(cached.get(index, &mut SampleContext::new(0)).unwrap(), text(index), "round {round}");
        }
    }
    let len = fs::metadata(folder.path().join("samples")).unwrap().len();
    assert!((1..=100).contains(&len));
    let lacking = computed(&folder, 8);
    assert!((1..8).contains(&lacking), "{lacking}");
    assert_eq!(computed(&folder, 8), 0, "a process without the limit has filled it");
}

#[test]
fn a_folder_that_is_replaced_later_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let cached = texts(8).cached(&folder, "1").unwrap();
    let opened = cached.clone().max_bytes(u64::MAX);
    opened.get(0, &mut SampleContext::new(0)).unwrap();
    ["index", "samples"].iter().for_each(|name| fs::remove_file(folder.path().join(name)).unwrap());
    texts(9).cached(&folder, "another").unwrap();
    for cached in [cached, opened] {
        assert_eq!(cached.get(1, &mut SampleContext::new(0)).unwrap(), text(1));
    }
    assert_eq!(fs::metadata(folder.path().join("samples")).unwrap().len(), 0);
}

/// Fills the cache with the type that samples had before it was changed.
fn fill_with_the_old_type(folder: &TempDir) {
    let words = TensorDataset::new(Tensor::from_slice(&[7_u32; 4], [4]).unwrap()).unwrap();
    let cached = words.map(|row, _cx| Ok(row[0])).cached(folder, "1").unwrap();
    (0..4).for_each(|index| assert_eq!(cached.get(index, &mut SampleContext::new(0)).unwrap(), 7));
}

#[test]
fn samples_of_a_changed_type_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fill_with_the_old_type(&folder);
    let words = TensorDataset::new(Tensor::from_slice(&[7_u32; 4], [4]).unwrap()).unwrap();
    let mut cached = words.map(|row, _cx| Ok((row[0], 0_u8))).cached(folder.path().join("new"), "1").unwrap();
    // A real program has the same name for both types.
    cached.identity.sample = "u32".to_owned();
    cached.folder = folder.path().into();
    let error = cached.get(1, &mut SampleContext::new(0)).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(CacheError::NotReadable { index: 1, .. })), "{error}");
}
