//! Megatron's pairs of `.idx` and `.bin`.

use std::{fs, iter, path::PathBuf};

use loader_core::{DType, DataLoader, Dataset, SampleContext};
use loader_data::{DataError, DataProblem, Position, TokenDocuments, Tokens};
use tempfile::TempDir;

use super::{all, fixture, windows, written};
use crate::everywhere::{same_everywhere, write_old};

/// Number of tokens of each document that `write.py` writes.
fn lengths() -> impl Iterator<Item = usize> {
    (0..40).map(|i| match i {
        _ if i % 10 == 7 => 0,
        _ if i % 3 != 0 => i % 13 + 1,
        _ => i % 5 + 21,
    })
}

/// The documents that `write.py` writes.
fn documents() -> Vec<Vec<i64>> {
    let mut tokens = written(1000).into_iter();
    lengths().map(|len| tokens.by_ref().take(len).collect()).collect()
}

/// A copy of the pair `corpus` in a folder of its own.
fn copy() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let [index, data] = ["corpus.idx", "corpus.bin"].map(|name| {
        fs::copy(fixture(name), folder.path().join(name)).unwrap();
        folder.path().join(name)
    });
    (folder, index, data)
}

#[test]
fn windows_are_cut_from_the_concatenated_documents() {
    let concatenated = documents().concat();
    for path in ["corpus", "corpus.idx", "corp{us}", "corpus*"] {
        let tokens = Tokens::<i64>::open_megatron(fixture(path), 17).unwrap();
        assert_eq!(tokens.total_tokens(), 456);
        assert!(all(&tokens).iter().map(|row| row.as_slice()).eq(windows(&concatenated, 17, 16)), "{path}");
    }
    for path in ["large_vocabulary", "multimodal"] {
        let tokens = Tokens::<i64>::open_megatron(fixture(path), 10).unwrap().stride(10).unwrap();
        let expected = windows(&concatenated[..140], 10, 10);
        assert!(all(&tokens).iter().map(|row| row.as_slice()).eq(expected), "{path}");
    }
    let both = Tokens::<i64>::open_megatron_all([fixture("corpus"), fixture("multimodal")], 17).unwrap();
    assert_eq!(both.len(), (456 - 17) / 16 + 1 + (140 - 17) / 16 + 1);
}

#[test]
fn a_sample_can_be_a_document() {
    let documents = documents();
    let read = TokenDocuments::<i64>::open(fixture("corpus")).unwrap().vocabulary(50_257);
    assert!(all(&read).iter().map(|sample| sample.row().as_slice()).eq(&documents));
    assert!(read.lengths().eq(lengths()));

    let cut = read.clone().max_tokens(5);
    assert!(
        all(&cut)
            .iter()
            .map(|sample| sample.row().as_slice())
            .eq(documents.iter().map(|document| &document[..document.len().min(5)]))
    );
    assert_ne!(read.fingerprint(), cut.fingerprint());

    let twice = TokenDocuments::<i64>::open_all([fixture("corpus"), fixture("multimodal")]).unwrap();
    let expected = documents.iter().chain(&documents[..12]);
    assert!(all(&twice).iter().map(|sample| sample.row().as_slice()).eq(expected));
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let batches = same_everywhere(|workers| {
        let tokens = Tokens::<u32>::open_megatron(fixture("corpus"), 9).unwrap();
        let tokens = tokens.stride(2).unwrap().end_of_document(written(3)[2] as u32).unwrap();
        DataLoader::builder(tokens).batch_size(8).shuffle(true).num_workers(workers).build().unwrap()
    });
    assert_eq!(
        (batches[0].tokens.shape(), batches[0].segments.shape()),
        ([8, 9].as_slice(), [8, 9].as_slice())
    );

    let batches = same_everywhere(|workers| {
        let documents = TokenDocuments::<i64>::open(fixture("corpus")).unwrap().pad(-1);
        DataLoader::builder(documents).batch_size(2).num_workers(workers).build().unwrap()
    });
    assert_eq!(batches[3].lengths.as_slice(), [22, 0]);
    assert_eq!(batches[3].values.row(0)[21], written(83)[82]);
    assert_eq!(batches[3].values.row(1), [-1; 22]);
}

#[test]
fn a_position_restarts_after_the_end_of_a_document() {
    let tokens = Tokens::<i64>::open_megatron(fixture("corpus"), 9).unwrap();
    let end = written(5)[4];
    let window = tokens.end_of_document(end).unwrap().get(0, &mut SampleContext::new(0)).unwrap();
    assert_eq!(window.tokens.as_slice(), &written(9));
    assert_eq!(window.positions.as_slice(), [0, 1, 2, 3, 4, 0, 1, 2, 3]);
    assert_eq!(window.segments.as_slice(), [1, 1, 1, 1, 1, 2, 2, 2, 2]);

    let small = Tokens::<u16>::open(fixture("u8.bin"), DType::U8, 100).unwrap();
    assert!(small.end_of_document(0).is_ok());
}

#[test]
fn an_index_that_ends_anywhere_too_early_is_refused() {
    let (_folder, index, _) = copy();
    let whole = fs::read(&index).unwrap();
    // The header, each array, and the middle of each.
    for len in [0, 5, 9, 13, 17, 18, 22, 26, 33, 34, 100, 230, 500, 622, 800, 949] {
        fs::write(&index, &whole[..len]).unwrap();
        for error in [
            Tokens::<i64>::open_megatron(&index, 9).unwrap_err(),
            TokenDocuments::<i64>::open(&index).unwrap_err(),
        ] {
            assert!(matches!(error.problem, DataProblem::Truncated), "{len}: {error}");
            assert!(
                error.file.contains("corpus.idx") && matches!(error.position, Position::Offset(_)),
                "{error}"
            );
        }
    }
}

#[test]
fn a_pair_that_does_not_belong_together_is_refused() {
    let (folder, index, data) = copy();
    let open = || Tokens::<i64>::open_megatron(folder.path(), 9).unwrap_err();
    let whole = fs::read(&data).unwrap();
    for content in [&whole[..whole.len() - 1], &[&whole[..], &[0, 0]].concat()[..]] {
        fs::write(&data, content).unwrap();
        let error = open();
        assert!(matches!(error.problem, DataProblem::Malformed { .. }), "{error}");
        assert!(
            error.file.contains("corpus.bin") && error.to_string().contains("456 tokens of uint16"),
            "{error}"
        );
    }
    fs::remove_file(&data).unwrap();
    let missing = open();
    assert!(
        matches!(missing.problem, DataProblem::NotFound) && missing.file.contains("corpus.bin"),
        "{missing}"
    );

    fs::copy(fixture("u16.bin"), &index).unwrap();
    fs::write(&data, whole).unwrap();
    assert!(matches!(open().problem, DataProblem::Malformed { format: "a Megatron index", .. }));

    let missing = Tokens::<i64>::open_megatron(fixture("nothing"), 9).unwrap_err();
    assert!(
        matches!(missing.problem, DataProblem::NotFound) && missing.file.contains("nothing.idx"),
        "{missing}"
    );
    let tokens = Tokens::<i64>::open_megatron(fixture("corpus.bin"), 9).unwrap_err();
    assert!(
        tokens
            .to_string()
            .ends_with("corpus.bin`: option `path`: the name ends with `.bin`; give the path of Megatron's files without `.bin`"),
        "{tokens}"
    );
    let mixed =
        Tokens::<i64>::open_megatron_all([fixture("corpus"), fixture("large_vocabulary")], 9).unwrap_err();
    assert!(matches!(mixed.problem, DataProblem::Unsupported(_)), "{mixed}");
}

#[test]
fn the_tokens_of_another_pair_are_not_taken_for_those_of_an_index() {
    for (index, others) in [("a[1].idx", &["a1"][..]), ("a{1,2}.idx", &["a1", "a2"])] {
        let folder = tempfile::tempdir().unwrap();
        let put = |from: &str, name: &str| fs::copy(fixture(from), folder.path().join(name)).unwrap();
        put("corpus.idx", index);
        for other in others {
            put("corpus.bin", &format!("{other}.bin"));
        }
        let open = || Tokens::<i64>::open_megatron(folder.path().join(index), 9);
        let refused = open().unwrap_err();
        let data = index.replace(".idx", ".bin");
        assert!(
            matches!(refused.problem, DataProblem::Pattern(_)) && refused.file.contains(&data),
            "{refused}"
        );
        put("corpus.bin", &data);
        assert_eq!(open().unwrap().total_tokens(), 456, "a name that exists is no pattern");
    }
}

#[test]
fn a_changed_index_never_panics() {
    let (_folder, index, _) = copy();
    let whole = fs::read(&index).unwrap();
    let cx = &mut SampleContext::new(0);
    // Each byte of the header and the counts, and every 7th byte after them.
    for at in (0..34).chain((34..whole.len()).step_by(7)) {
        for change in [1, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= change;
            write_old(&index, &changed);
            if let Ok(documents) = TokenDocuments::<i64>::open(&index) {
                for number in iter::once(0).chain(documents.len().checked_sub(1)) {
                    documents.get(number, cx).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_document_outside_the_vocabulary_names_its_offset() {
    let documents = TokenDocuments::<i64>::open(fixture("corpus")).unwrap().vocabulary(100);
    let error = documents.get(2, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    let token = written(1000).iter().enumerate().position(|(at, &token)| at >= 23 && token >= 100).unwrap();
    assert_eq!(error.position, Position::Offset(2 * token as u64), "{error}");
    assert!(matches!(error.problem, DataProblem::TokenOutOfRange { min: 0, max: 99, .. }), "{error}");
}
