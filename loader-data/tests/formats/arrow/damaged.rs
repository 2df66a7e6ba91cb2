//! Files that are damaged, missing, or not what they should be.

use std::{fs, path::Path};

use loader_core::{Dataset, IterableDataset, SampleContext, Shard};
use loader_data::{Arrow, ArrowOptions, DataError, DataProblem, FieldOptions, Record};

use super::{fixture, open, select};
use crate::everywhere::{refuses_what_is_no_file, write_old};

/// Returns the error of opening the files that `pattern` stands for.
fn refused(pattern: &Path) -> DataError {
    Arrow::open(pattern).map(drop).unwrap_err()
}

/// Returns the error of opening a file with the content `bytes`.
fn refused_bytes(bytes: &[u8]) -> DataError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    write_old(&path, bytes);
    refused(&path)
}

fn reason(error: &DataError) -> &str {
    match &error.problem {
        DataProblem::Malformed { format: "Arrow IPC", reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_file_is_refused() {
    refuses_what_is_no_file("arrow", refused);
}

#[test]
fn a_file_or_stream_that_is_cut_anywhere_is_refused() {
    for name in ["other-type.arrow", "delta.arrows", "saved/data-00001-of-00002.arrow"] {
        let whole = fs::read(fixture(name)).unwrap();
        assert_eq!(reason(&refused_bytes(b"")), "the file is empty");
        for len in 1..whole.len() {
            let error = refused_bytes(&whole[..len]);
            assert!(matches!(error.problem, DataProblem::Truncated), "{name}, {len}: {error}");
        }
    }
    let more = [fs::read(fixture("delta.arrows")).unwrap(), vec![0; 8]].concat();
    assert_eq!(reason(&refused_bytes(&more)), "there are bytes after the end of the stream");
}

#[test]
fn what_is_no_arrow_file_is_refused() {
    assert_eq!(reason(&refused_bytes(&[b'x'; 100])), "it begins neither as a file nor as a stream of Arrow");
    assert!(matches!(refused_bytes(b"FEA1....FEA1").problem, DataProblem::Unsupported(_)));
    let end_only = [[0xff; 4], [0; 4]].concat();
    assert_eq!(reason(&refused_bytes(&end_only)), "the stream has no schema");
    let whole = fs::read(fixture("other-type.arrow")).unwrap();
    let with_size = |size: i32| {
        let mut bytes = whole.clone();
        let at = bytes.len() - 10;
        bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
        refused_bytes(&bytes)
    };
    for size in [i32::MAX, -1, whole.len() as i32 - 10] {
        assert!(reason(&with_size(size)).contains("do not fit into the file"), "{size}");
    }
    assert!(reason(&with_size(0)).contains("its footer is invalid"));
}

#[test]
fn files_with_other_columns_are_refused_with_the_file_and_the_column() {
    let train = fixture("saved/data-00000-of-00002.arrow");
    let open_with = |second: &str, names: &[&str]| {
        let options = ArrowOptions::new_all([train.clone(), fixture(second)]);
        options.fields(FieldOptions::new().select(names.iter().copied())).open().map(drop)
    };
    let missing = open_with("other-columns.arrow", &["label", "x"]).unwrap_err();
    assert!(missing.file.ends_with("other-columns.arrow`"), "{missing}");
    assert!(matches!(missing.problem, DataProblem::MissingField { field, .. } if field == "x"));
    let wrong = open_with("other-type.arrow", &["label", "x"]).unwrap_err();
    let expected = "field `x`: expected list of 3 float32, as in the first file, found float32";
    assert_eq!(wrong.problem.to_string(), expected);
    open_with("other-type.arrow", &["label"]).expect("only the selected columns must agree");
    let more = Arrow::open_all([fixture("other-columns.arrow"), train.clone()]).unwrap_err();
    assert!(reason(&more).contains("that the first file does not have"), "{more}");

    let union = refused(&fixture("union.arrow"));
    assert!(
        matches!(&union.problem, DataProblem::UnsupportedColumn { column, .. } if column == "mixed"),
        "{union}"
    );
    let label = select("union.arrow", &["label"]).get(1, &mut SampleContext::new(0)).unwrap();
    assert_eq!(label.get("label"), Some(&6_i64.into()));
    assert_eq!((open("no-rows.arrow").len(), open("no-rows.arrow").columns().len()), (0, 2));
}

#[test]
fn text_that_is_not_utf8_fails_its_row_only() {
    let dataset = open("not-utf8.arrow");
    let cx = &mut SampleContext::new(0);
    let error = dataset.get(1, cx).unwrap_err().downcast::<DataError>().unwrap();
    assert!(error.to_string().contains(", row 1: "), "{error}");
    assert!(reason(&error).starts_with("column `text`: ") && reason(&error).contains("UTF"), "{error}");
    let text = |row: Record| row.get("text").cloned().unwrap();
    assert_eq!([0, 2].map(|row| text(dataset.get(row, cx).unwrap())), ["abcdefgh", "ijkl"].map(Into::into));
    assert!(dataset.get_many(&[0, 1, 2], cx).is_err());
    let stream = dataset.stream();
    let rows: Vec<_> = stream.iter(Shard::new(0, 1), cx).unwrap().map(|row| row.is_ok()).collect();
    assert_eq!(rows, [true, false, true]);
}

#[test]
fn a_compressed_record_batch_that_is_too_large_is_refused_with_the_option() {
    let options = ArrowOptions::new(fixture("types-zstd.arrow")).max_batch_bytes(2000);
    let error = options.open().unwrap().get(30, &mut SampleContext::new(0)).unwrap_err();
    let error = error.downcast::<DataError>().unwrap();
    let problem = &error.problem;
    assert!(matches!(problem, DataProblem::TooLarge { max: 2000, option: "max_batch_bytes", .. }), "{error}");
    let stream = options.open_stream().unwrap();
    let mut cx = SampleContext::new(0);
    let rows: Vec<_> = stream.iter(Shard::new(0, 1), &mut cx).unwrap().collect();
    assert!(rows.len() == 40 && rows.iter().all(Result::is_err), "an error for each row");
}

/// Opens a file with the content `bytes`, and reads rows at random and in order. Returns the number of
/// errors; `None` if the file is refused.
fn read_all(bytes: &[u8]) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arrow");
    write_old(&path, bytes);
    let dataset = Arrow::open(&path).ok()?;
    let mut cx = SampleContext::new(0);
    let last = dataset.len().checked_sub(1)?;
    let random = dataset.get_many(&[last, 0, last / 2], &mut cx);
    let stream = dataset.stream();
    let rows = stream.iter(Shard::new(0, 1), &mut cx).unwrap().take(100);
    Some(usize::from(random.is_err()) + rows.filter(Result::is_err).count())
}

/// Each byte of the file is changed in two ways. Opening the file and reading its rows then gives rows or
/// typed errors.
#[test]
fn a_changed_byte_never_panics() {
    let (mut refused, mut failed) = (0, 0);
    for (name, step) in
        [("odd.arrow", 13), ("pandas.feather", 19), ("replaced.arrows", 3), ("types.arrow", 97)]
    {
        let whole = fs::read(fixture(name)).unwrap();
        for at in (0..whole.len()).step_by(step) {
            for change in [1u8 << (at % 8), 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                match read_all(&bytes) {
                    None => refused += 1,
                    Some(errors) => failed += usize::from(errors > 0),
                }
            }
        }
    }
    assert!(refused > 100 && failed > 100, "{refused} refused, {failed} failed: the test shows little");
}
