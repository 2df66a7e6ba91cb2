//! Splits in the names of files.

/// Names of splits that `datasets` finds in the names of files and folders.
#[doc(hidden)]
pub const SPLIT_NAMES: [&str; 10] =
    ["train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"];

/// Returns the split in the name of a data file: `test` in `test-00000-of-00002.parquet`, and `train` in
/// `train_1.csv`.
#[doc(hidden)]
pub fn split_of(name: &str) -> Option<&str> {
    let (stem, _) = name.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = || {
        let (stem, count) = stem.rsplit_once("-of-")?;
        let (split, number) = stem.rsplit_once('-')?;
        (is_number(count) && is_number(number)).then_some(split)
    };
    let first = stem.split(['-', '_', ' ']).next().filter(|word| SPLIT_NAMES.contains(word));
    numbered().or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_splits() {
        for (path, expected) in [
            ("train-00000-of-00002.parquet", Some("train")),
            ("fold-1-00000-of-00002.parquet", Some("fold-1")),
            ("test.jsonl.gz", Some("test")),
            ("val_v1.0.csv", Some("val")),
            ("trainer.csv", None),
            ("part-00000.csv", None),
            ("train", None),
        ] {
            assert_eq!(split_of(path), expected, "{path}");
        }
    }
}
