//! Files that are damaged, missing, or not what they should be.

use std::{fs, path::Path};

use loader_core::{DataLoader, Dataset, IterableDataset, OnBadSample, SampleContext, Shard};
use loader_data::{DataError, DataProblem, FieldOptions, Parquet, ParquetOptions};

use super::{fixture, open};
use crate::everywhere::{refuses_what_is_no_file, write_old};

/// Returns the error of opening the files that `pattern` stands for.
fn refused(pattern: &Path) -> DataError {
    Parquet::open(pattern).map(drop).unwrap_err()
}

/// Returns the error of opening a file with the content `bytes`.
fn refused_bytes(bytes: &[u8]) -> DataError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_old(&path, bytes);
    refused(&path)
}

fn reason(error: &DataError) -> &str {
    match &error.problem {
        DataProblem::Malformed { format: "Parquet", reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_file_is_refused() {
    refuses_what_is_no_file("parquet", refused);
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let whole = fs::read(fixture("snappy.parquet")).unwrap();
    for len in 0..whole.len() {
        let error = refused_bytes(&whole[..len]);
        match len {
            0 => assert_eq!(reason(&error), "the file is empty"),
            1..12 => assert_eq!(reason(&error), format!("it has only {len} bytes")),
            _ => assert!(matches!(error.problem, DataProblem::Truncated), "{len}: {error}"),
        }
    }
}

#[test]
fn a_footer_that_lies_is_refused() {
    let whole = fs::read(fixture("snappy.parquet")).unwrap();
    let end = whole.len() - 8;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        refused_bytes(&changed)
    };
    let longer = with(end, &u32::MAX.to_le_bytes());
    assert_eq!(reason(&longer), "its footer of 4294967295 bytes is longer than the file");
    assert!(longer.to_string().contains(&format!(", byte {end}: ")), "{longer}");
    reason(&with(end, &((end - 4) as u32).to_le_bytes()));
    reason(&with(end, &0u32.to_le_bytes()));
    assert!(matches!(with(end + 4, b"PARE").problem, DataProblem::Unsupported(_)));
    let other = refused_bytes(&[b'x'; 100]);
    assert_eq!(reason(&other), "it does not begin and end with `PAR1`");
}

#[test]
fn files_with_other_columns_are_refused_with_the_file_and_the_column() {
    let train = fixture("train-00000-of-00002.parquet");
    let select = |second: &str, names: &[&str]| {
        let options = ParquetOptions::new_all([train.clone(), fixture(second)]);
        options.fields(FieldOptions::new().select(names.iter().copied())).open().map(drop)
    };
    let missing = select("other-columns.parquet", &["label", "x"]).unwrap_err();
    assert!(missing.file.ends_with("other-columns.parquet`"), "{missing}");
    assert!(matches!(missing.problem, DataProblem::MissingField { field, .. } if field == "x"));

    let wrong = select("other-type.parquet", &["label", "x"]).unwrap_err();
    let expected = "field `x`: expected list of 3 float32, as in the first file, found float32";
    assert_eq!(wrong.problem.to_string(), expected);

    select("other-type.parquet", &["label"]).expect("only the selected columns must agree");
    let more = Parquet::open_all([fixture("other-columns.parquet"), train.clone()]).unwrap_err();
    assert!(reason(&more).contains("a column `x` that the first file does not have"), "{more}");
}

#[test]
fn a_file_without_rows_gives_no_rows() {
    let dataset = open("no-rows.parquet");
    assert_eq!((dataset.len(), dataset.row_groups(), dataset.columns().len()), (0, 0, 2));
    let stream = dataset.stream().shuffle_blocks(3).unwrap();
    let loader = DataLoader::stream(stream).shards(2).build().unwrap();
    assert_eq!(loader.iter().unwrap().count(), 0);
}

#[test]
fn text_that_is_not_utf8_fails_its_row_group() {
    let dataset = open("not-utf8.parquet");
    let error = dataset.get(0, &mut SampleContext::new(0)).unwrap_err();
    let error = error.downcast_ref::<DataError>().unwrap();
    assert!(reason(error).contains("utf"), "{error}");
}

#[test]
fn too_many_open_row_groups_are_refused_with_the_option() {
    let error = open("train-*.parquet").stream().block_bytes(500).shuffle_blocks(4).unwrap_err();
    assert!(
        matches!(error.problem, DataProblem::TooLarge { max: 500, option: "block_bytes", .. }),
        "{error}"
    );
    // The sizes in the footer are those of the encoded columns, which need more memory when they are decoded.
    let stream = open("train-*.parquet").stream().block_bytes(1200).shuffle_blocks(2).unwrap();
    let mut cx = SampleContext::new(0);
    let rows: Vec<_> = stream.iter(Shard::new(0, 1), &mut cx).unwrap().collect();
    assert_eq!(rows.len(), 60);
    let first = rows.into_iter().find_map(Result::err).expect("the limit is too low");
    assert!(first.to_string().contains("raise `block_bytes`"), "{first}");
}

#[test]
fn a_file_that_changes_fails_the_rows_that_are_read_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    fs::copy(fixture("train-00000-of-00002.parquet"), &path).unwrap();
    let dataset = Parquet::open(&path).unwrap();
    // The file is still open in `dataset`, but not in its clone.
    let clone = dataset.clone();
    fs::copy(fixture("train-00001-of-00002.parquet"), &path).unwrap();
    let error = clone.get(0, &mut SampleContext::new(0)).unwrap_err();
    let error = error.downcast_ref::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::Changed { .. }), "{error}");
    drop(dataset);
}

/// Writes a copy of `types.parquet` whose first row group is damaged: pages have checksums there.
fn with_damaged_group(folder: &Path) -> std::path::PathBuf {
    let mut bytes = fs::read(fixture("types.parquet")).unwrap();
    bytes[60] ^= 1;
    let path = folder.join("damaged.parquet");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_damaged_row_group_fails_its_own_rows_only() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Parquet::open(with_damaged_group(folder.path())).unwrap();
    let streams = [dataset.clone().stream(), dataset.clone().stream().shuffle_blocks(2).unwrap()];
    for stream in streams {
        let mut cx = SampleContext::new(0);
        let rows: Vec<_> = stream.iter(Shard::new(0, 1), &mut cx).unwrap().collect();
        assert_eq!(rows.len(), 40);
        let failed: Vec<_> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
        assert_eq!(failed.len(), 25);
        assert!(failed.iter().all(|error| error.to_string().contains("CRC")), "{}", failed[0]);
    }
    assert!(dataset.get(24, &mut SampleContext::new(0)).is_err());
    dataset.get(25, &mut SampleContext::new(0)).unwrap();
}

#[test]
fn a_loader_skips_the_rows_of_a_damaged_row_group() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Parquet::open(with_damaged_group(folder.path())).unwrap();
    let dataset = dataset.fields(FieldOptions::new().select(["i8"])).unwrap();
    let loader = DataLoader::builder(dataset)
        .batch_size(40)
        .num_workers(1)
        .on_bad_sample(OnBadSample::Skip)
        .max_bad_samples(25);
    let batches: Vec<_> = loader.build().unwrap().iter().unwrap().collect();
    let good = batches.iter().map(|batch| batch.as_ref().unwrap());
    let rows: Vec<i8> =
        good.flat_map(|batch| batch.tensor::<i8>("i8").unwrap().as_slice().to_vec()).collect();
    assert_eq!(rows, (20..35).collect::<Vec<_>>());
}

/// Opens a file with the content `bytes`, and reads rows at random and in order. Returns the number of
/// errors; `None` if the file is refused.
fn read_all(bytes: &[u8]) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_old(&path, bytes);
    let dataset = Parquet::open(&path).ok()?;
    let mut cx = SampleContext::new(0);
    let last = dataset.len().checked_sub(1)?;
    let random = dataset.get_many(&[last, 0, last / 2], &mut cx);
    let stream = dataset.stream();
    let rows = stream.iter(Shard::new(0, 1), &mut cx).unwrap().take(100);
    Some(usize::from(random.is_err()) + rows.filter(Result::is_err).count())
}

/// Each byte of the file is changed in two ways. Whatever the library then does, opening the file and reading
/// its rows gives rows or typed errors.
#[test]
fn a_changed_byte_never_panics() {
    let (mut refused, mut failed) = (0, 0);
    for (name, step) in [("other-type.parquet", 3), ("zstd.parquet", 17)] {
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
    assert!(refused > 30 && failed > 30, "{refused} refused, {failed} failed: the test shows little");
}
