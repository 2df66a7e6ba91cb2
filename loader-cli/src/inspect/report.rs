//! What the command prints. docs/tools.md describes the JSON.

use std::{collections::BTreeMap, fmt};

use indicatif::DecimalBytes;
use loader_core::{BadSample, internal::printable};
use serde::Serialize;

use super::{
    Read,
    open::Source,
    statistics::{Field, Histogram, Range, RepeatedKeys, Type},
};

/// Maximum number of classes, and of bad files and samples, in the text. The JSON has all of them.
const MAX_SHOWN: usize = 20;

/// Number of characters of the longest bar of a histogram.
const BAR: u64 = 40;

/// What is in a dataset.
#[derive(Debug, Serialize)]
pub(super) struct Inspection {
    kind: &'static str,
    /// Number of files that could be opened.
    files: u64,
    file_bytes: u64,
    /// Number of samples that were read, without the bad ones.
    samples: u64,
    /// Bytes of the values of these samples, in memory.
    sample_bytes: u64,
    /// True if all samples of the dataset were read.
    is_complete: bool,
    seconds: f64,
    fields: Vec<FieldEntry>,
    /// True if there are more fields than are listed.
    has_more_fields: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<ClassEntry>,
    /// Columns that are not read, because their types are not supported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unsupported_columns: Vec<ColumnEntry>,
    /// Samples of tar archives whose key came before, because their members are not adjacent.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated_keys: Option<RepeatedKeys>,
    pub(super) bad_files: Vec<BadFileEntry>,
    pub(super) bad_samples: Vec<BadSampleEntry>,
    /// True if reading ended at the maximum number of bad samples.
    pub(super) has_too_many_bad_samples: bool,
    /// The lines of a config for the target, unless it is a config.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
}

#[derive(Debug, Serialize)]
struct FieldEntry {
    name: String,
    /// Number of samples that have the field.
    samples: u64,
    types: Vec<Type>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<Lengths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<Numbers>,
    /// Number of samples with each value, if there are few.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Serialize)]
struct Lengths {
    #[serde(flatten)]
    range: Numbers,
    buckets: Vec<Bucket>,
}

#[derive(Debug, Serialize)]
struct Bucket {
    min: u64,
    max: u64,
    samples: u64,
}

#[derive(Debug, Serialize)]
struct Numbers {
    min: f64,
    max: f64,
    mean: f64,
}

/// A class of an image folder.
#[derive(Debug, Serialize)]
pub(super) struct ClassEntry {
    pub(super) name: String,
    pub(super) files: u64,
}

/// A column of a type that is not supported.
#[derive(Debug, Serialize)]
#[cfg_attr(not(feature = "formats"), allow(dead_code, reason = "image folders have no columns"))]
pub(super) struct ColumnEntry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) data_type: String,
}

/// A file that cannot be opened.
#[derive(Debug, Serialize)]
#[cfg_attr(not(feature = "formats"), allow(dead_code, reason = "images are not opened before they are read"))]
pub(super) struct BadFileEntry {
    file: String,
    error: String,
}

#[cfg(feature = "formats")]
impl BadFileEntry {
    pub(super) fn new(error: &loader_data::DataError) -> Self {
        Self { file: error.file.trim_matches('`').to_owned(), error: error.to_string() }
    }
}

/// A sample that cannot be read.
#[derive(Debug, Serialize)]
pub(super) struct BadSampleEntry {
    /// Index of the sample, or its position in the shard.
    sample: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<usize>,
    error: String,
}

impl BadSampleEntry {
    pub(super) fn new(sample: &BadSample) -> Self {
        let BadSample { index, shard, reason, .. } = sample.clone();
        Self { sample: index, shard, error: reason }
    }
}

impl Inspection {
    pub(super) fn new(source: &mut Source, read: Read) -> Self {
        let Read { statistics, bad_samples, has_too_many_bad_samples, is_complete, elapsed } = read;
        Self {
            kind: source.kind(),
            files: source.files,
            file_bytes: source.file_bytes,
            samples: statistics.samples,
            sample_bytes: statistics.bytes,
            is_complete,
            seconds: elapsed.as_secs_f64(),
            fields: statistics.fields.into_iter().map(FieldEntry::new).collect(),
            has_more_fields: statistics.has_more_fields,
            repeated_keys: Some(statistics.repeated_keys).filter(|keys| keys.samples > 0),
            classes: source.classes(),
            unsupported_columns: std::mem::take(&mut source.left_out),
            bad_files: std::mem::take(&mut source.bad_files),
            bad_samples,
            has_too_many_bad_samples,
            config: source.config.take(),
        }
    }

    /// Number of files and samples that cannot be read.
    pub(super) fn bad(&self) -> u64 {
        (self.bad_files.len() + self.bad_samples.len()) as u64
    }
}

impl FieldEntry {
    fn new(field: Field) -> Self {
        let Field { name, samples, types, lengths, numbers, values } = field;
        // A field that is always null has no values.
        let values = values.filter(|values| !values.is_empty());
        let (lengths, numbers) = (Lengths::new(&lengths), Numbers::new(&numbers));
        Self { name, samples, types, lengths, numbers, values }
    }
}

impl Lengths {
    fn new(lengths: &Histogram) -> Option<Self> {
        let bucket = |(min, max, samples)| Bucket { min, max, samples };
        let buckets = lengths.buckets().into_iter().map(bucket).collect();
        Some(Self { range: Numbers::new(&lengths.range)?, buckets })
    }
}

impl Numbers {
    fn new(range: &Range) -> Option<Self> {
        Some(Self { min: range.min, max: range.max, mean: range.mean()? })
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, files, samples, seconds, .. } = self;
        let (file_bytes, sample_bytes) = (DecimalBytes(self.file_bytes), DecimalBytes(self.sample_bytes));
        let part = if self.is_complete { "" } else { " (not all)" };
        writeln!(f, "{kind}: {files} files, {file_bytes}")?;
        writeln!(f, "{samples} samples{part}, {sample_bytes} in memory, read in {seconds:.2} s")?;
        for field in &self.fields {
            writeln!(f, "{field}")?;
        }
        if self.has_more_fields {
            writeln!(f, "there are more fields")?;
        }
        list(f, "classes", &self.classes, |class| format!("{}: {} files", class.name, class.files))?;
        let column = |column: &ColumnEntry| format!("{}: {}", column.name, column.data_type);
        list(f, "columns of types that are not supported", &self.unsupported_columns, column)?;
        if let Some(RepeatedKeys { samples, examples }) = &self.repeated_keys {
            let examples = printable(examples.join(", "));
            writeln!(
                f,
                "{samples} samples have the key of an earlier sample of their archive ({examples}): members with one key \
                 form one sample only if they follow each other"
            )?;
        }
        list(f, "bad files", &self.bad_files, |bad| bad.error.clone())?;
        list(f, "bad samples", &self.bad_samples, ToString::to_string)?;
        if self.has_too_many_bad_samples {
            writeln!(f, "there are more bad samples than --max-bad-samples; the rest was not read")?;
        }
        if let Some(config) = &self.config {
            writeln!(f, "a config for these files:")?;
            config.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

/// Prints the number of `entries`, and the first ones.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    entries: &[T],
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    if entries.is_empty() {
        return Ok(());
    }
    writeln!(f, "{} {name}", entries.len())?;
    for entry in entries.iter().take(MAX_SHOWN) {
        writeln!(f, "  {}", printable(text(entry).replace('\n', " ")))?;
    }
    match entries.len().saturating_sub(MAX_SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more; --json lists all"),
    }
}

impl fmt::Display for BadSampleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shard {
            Some(shard) => write!(f, "sample {} of shard {shard}: {}", self.sample, self.error),
            None => write!(f, "sample {}: {}", self.sample, self.error),
        }
    }
}

impl fmt::Display for FieldEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<_> = self.types.iter().map(Type::to_string).collect();
        write!(f, "{}: {}, in {} samples", printable(&self.name), types.join(" or "), self.samples)?;
        if let Some(numbers) = &self.numbers {
            write!(f, "\n  values {numbers}")?;
        }
        if let Some(values) = &self.values {
            let counts: Vec<_> =
                values.iter().map(|(value, samples)| format!("{value} ({samples})")).collect();
            write!(f, "\n  {} distinct: {}", values.len(), printable(counts.join(", ")))?;
        }
        let Some(Lengths { range, buckets }) = &self.lengths else { return Ok(()) };
        write!(f, "\n  lengths {range}")?;
        let most = buckets.iter().map(|bucket| bucket.samples).max().unwrap_or(1);
        for Bucket { min, max, samples } in buckets {
            let bar = "#".repeat((samples.saturating_mul(BAR) / most) as usize);
            let lengths = if min == max { min.to_string() } else { format!("{min} to {max}") };
            write!(f, "\n  {lengths:>24} {samples:>9} {bar}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, mean {:.4}", self.min, self.max, self.mean)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.shape.is_empty() {
            return Ok(());
        }
        let size =
            |&(min, max): &(usize, usize)| if min == max { min.to_string() } else { format!("{min}..{max}") };
        write!(f, " [{}]", self.shape.iter().map(size).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(all(test, feature = "formats"))]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_is_listed_without_credentials() {
        let location = "`https://host/a.parquet?...`";
        let entry =
            BadFileEntry::new(&loader_data::DataError::new(location, loader_data::DataProblem::NotFound));
        assert_eq!(entry.file, "https://host/a.parquet?...");
    }
}
