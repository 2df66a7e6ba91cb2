//! The dataset [`Arrays`].

use std::{iter, marker::PhantomData, path::Path, sync::Arc};

use derive_where::derive_where;
use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ArrayFormat, ArraysOptions, array::Budget, field::Field, formats, options::ArraySource};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    record::{self, FieldOptions, Record, Value},
    source::Files,
};

/// The rows of arrays in files, with random access: NumPy's `.npy` and `.npz`, safetensors, IDX (MNIST) and
/// the binary files of CIFAR.
///
/// Row `i` has entry `i` of the first dimension of each array, as a field: a number if the array has one
/// dimension, otherwise a tensor with the dtype of the array. All arrays must have the same
/// number of rows. A sample is a [`Record`], or a type of your own that implements `Deserialize`,
/// see [`rows`](Self::rows).
///
/// # Reading
/// Opening reads the headers. A field of a row is one read of the file (`pread`), so any order costs about
/// the same. Compressed arrays (`savez_compressed`, `.gz`) are unpacked when they are opened, into memory
/// that all workers share, of at most [`max_unpacked_bytes`](ArraysOptions::max_unpacked_bytes).
///
/// # Errors
/// A sample fails with a [`DataError`] if a file cannot be read or has changed since it was opened.
///
/// # Examples
/// ```
/// use loader_core::DataLoader;
/// use loader_data::Arrays;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrays");
/// # std::env::set_current_dir(folder)?;
/// let rows = Arrays::open("digits.npz")?;
/// let loader = DataLoader::builder(rows).batch_size(4).shuffle(true).seed(1).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<u8>("image")?.shape(), [4, 8, 8]);
/// assert_eq!(batch.tensor::<i64>("label")?.shape(), [4]);
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Arrays<R = Record> {
    /// The files, with the fields that are read from them.
    sources: Vec<(Files, Vec<Field>)>,
    /// For each field of a row: the index of its source, and the index of the field in that source.
    order: Vec<(usize, usize)>,
    rows: usize,
    options: FieldOptions,
    row: PhantomData<fn() -> R>,
}

impl Arrays<Record> {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and its sub-folders whose
    /// names end with `.npy`, `.npz` or `.safetensors`, ordered by path), or a name with braces and
    /// wildcards, such as `data/train-*.npz`. The rows of the files follow each other; each file must have
    /// the same fields.
    ///
    /// The fields are named as in the file. The only field of a `.npy` or IDX file is named after the file,
    /// without extension; [`open_fields`](Self::open_fields) lets you choose its name.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, a file cannot be read or is damaged, the arrays have
    /// different numbers of rows, or a file has other fields than the first one. An array in Fortran order,
    /// or whose elements are not numbers or booleans, is an error too; [`ArraysOptions::fields`] selects
    /// the other arrays.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        ArraysOptions::new(pattern).open()
    }

    /// Opens files with one array each, `.npy` or IDX, as fields with the given names. The rows of several
    /// files of a field follow each other.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// use loader_core::Dataset;
    /// use loader_data::Arrays;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrays");
    /// # std::env::set_current_dir(folder)?;
    /// let mnist = Arrays::open_fields([("image", "images-idx3-ubyte.gz"), ("label", "labels-idx1-ubyte.gz")])?;
    /// assert_eq!(mnist.len(), 10);
    /// # anyhow::Ok(())
    /// ```
    pub fn open_fields<N: Into<String>, P: AsRef<Path>>(
        fields: impl IntoIterator<Item = (N, P)>,
    ) -> Result<Self, DataError> {
        let add = |options: ArraysOptions, (name, pattern): (N, P)| options.field(name, pattern);
        fields.into_iter().fold(ArraysOptions::default(), add).open()
    }

    /// Opens files of a format that has no magic bytes, such as CIFAR's `data_batch_{1..5}.bin`.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_as(pattern: impl AsRef<Path>, format: ArrayFormat) -> Result<Self, DataError> {
        ArraysOptions::new(pattern).format(format).open()
    }
}

impl ArraysOptions {
    /// Opens the files.
    ///
    /// # Errors
    /// As for [`Arrays::open`].
    pub fn open(&self) -> Result<Arrays, DataError> {
        let mut sources = Vec::new();
        let mut budget = Budget::new(self.unpacked_limit());
        for source in self.sources()? {
            let fields = fields_of(&source, self.fields.selected(), &mut budget)?;
            sources.push((source.files, fields));
        }
        let order = order_of(&sources, self.fields.selected())?;
        let rows = equal_rows(&sources)?;
        let names = order.iter().map(|&(source, field)| &sources[source].1[field].name);
        let failed = |problem| DataError::new(sources[0].0.get(0).location, problem);
        self.fields.check_names(names).map_err(failed)?;
        Ok(Arrays { sources, order, rows, options: self.fields.for_selected(), row: PhantomData })
    }
}

impl<R> Arrays<R> {
    /// Returns the dataset with rows of type `T`, whose fields are found by their names. Fields that `T` does
    /// not have are read and dropped, so select only the fields that `T` has.
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> Arrays<T> {
        let Self { sources, order, rows, options, .. } = self;
        Arrays { sources, order, rows, options, row: PhantomData }
    }

    /// Returns the name of each field, and the type of its values such as `uint8 array of shape [28, 28]`.
    pub fn fields(&self) -> Vec<(String, String)> {
        self.ordered().map(|(_, field)| (field.name.clone(), field.row_type())).collect()
    }

    /// Returns the fields of a row, in order, with their files.
    fn ordered(&self) -> impl Iterator<Item = (&Files, &Field)> {
        self.order.iter().map(|&(source, field)| {
            let (files, fields) = &self.sources[source];
            (files, &fields[field])
        })
    }
}

impl<R: DeserializeOwned + Send + 'static> Dataset for Arrays<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.rows
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<R> {
        let mut samples = self.get_many(&[index], cx)?;
        Ok(samples.pop().expect("`get_many` returns a sample for each index"))
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<R>> {
        if let Some(index) = indices.iter().find(|&&index| index >= self.rows) {
            panic!("index {index} of {} rows", self.rows);
        }
        let mut records: Vec<Vec<(Arc<str>, Value)>> =
            indices.iter().map(|_| Vec::with_capacity(self.order.len())).collect();
        for (files, field) in self.ordered() {
            let name = record::shared(&field.name);
            for (record, value) in records.iter_mut().zip(field.read(files, indices)?) {
                record.push((Arc::clone(&name), value));
            }
        }
        let sample = |(record, &index)| {
            let record = self.options.apply(Record::from_fields(record)).and_then(Record::into_row);
            let failed = |problem| DataError::new("arrays", problem).at(Position::Row(index as u64));
            record.map_err(|problem| failed(problem).into())
        };
        records.into_iter().zip(indices).map(sample).collect()
    }

    /// Returns the number and size of the files, a hash of their names and sizes, and the names and types of the
    /// fields.
    fn fingerprint(&self) -> String {
        let files: Vec<_> = self.sources.iter().map(|(files, _)| files.fingerprint()).collect();
        format!("arrays({}, {:?}{})", files.join(" and "), self.fields(), self.options.fingerprint())
    }
}

/// Reads the headers of all files of `source`. Returns the selected fields, or all fields if none are
/// selected.
fn fields_of(
    source: &ArraySource<'_>,
    selected: Option<&[String]>,
    budget: &mut Budget,
) -> Result<Vec<Field>> {
    let mut fields: Vec<Field> = Vec::new();
    let is_wanted = |name: &str| {
        let name = source.field.unwrap_or(name);
        selected.is_none_or(|names| names.iter().any(|selected| selected == name))
    };
    for number in 0..source.files.len() {
        let blob = source.files.open(number)?;
        let failed = |problem| DataError::new(&blob.file().location, problem);
        let mut arrays = formats::arrays(&blob, source.format, &is_wanted, budget)?;
        if let Some(name) = source.field {
            let [array] = &mut arrays[..] else {
                let reason =
                    format!("has {} arrays, but a file for one field must have exactly one", arrays.len());
                return Err(failed(DataProblem::Unsupported(reason)));
            };
            array.name = name.to_owned();
        }
        arrays.retain(|array| is_wanted(&array.name));
        let mut found = Vec::new();
        for array in arrays {
            found.push(Field::new(number, blob.file(), array).map_err(failed)?);
        }
        // If the files of one archive each have the same total, but not the same rows per file, the fields of a row
        // would come from different samples.
        check_equal_rows(&found).map_err(failed)?;
        if number == 0 {
            fields = found;
            continue;
        }
        if let Some(unknown) = found.iter().find(|field| fields.iter().all(|first| first.name != field.name))
        {
            let first = source.files.get(0);
            return Err(DataError::new(first.location, missing(&unknown.name, &fields)));
        }
        for field in &mut fields {
            let Some(position) = found.iter().position(|found| found.name == field.name) else {
                return Err(failed(missing(&field.name, &found)));
            };
            field.append(found.swap_remove(position)).map_err(failed)?;
        }
    }
    Ok(fields)
}

/// Returns the indices of the source and of the field in it, for each selected field, or for all fields.
fn order_of(sources: &[(Files, Vec<Field>)], selected: Option<&[String]>) -> Result<Vec<(usize, usize)>> {
    let all = || {
        let numbered = sources.iter().enumerate();
        numbered.flat_map(|(source, (_, fields))| {
            fields.iter().enumerate().map(move |(field, found)| (&found.name, (source, field)))
        })
    };
    let of_first = |problem| DataError::new(sources[0].0.get(0).location, problem);
    let mut names: Vec<_> = all().map(|(name, _)| name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(of_first(DataProblem::DuplicateField { field: twice[0].clone() }));
    }
    let Some(selected) = selected else { return Ok(all().map(|(_, indices)| indices).collect()) };
    let found = selected.iter().map(|name| {
        all().find(|(found, _)| *found == name).map(|(_, indices)| indices).ok_or_else(|| {
            let fields = sources.iter().flat_map(|(_, fields)| fields);
            of_first(missing(name, fields))
        })
    });
    found.collect()
}

/// Returns the number of rows, which must be the same for all fields.
fn equal_rows(sources: &[(Files, Vec<Field>)]) -> Result<usize> {
    let fields = || sources.iter().flat_map(|(_, fields)| fields);
    let Some(first) = fields().next() else { return Ok(0) };
    for (files, of_source) in sources {
        check_equal_rows(iter::once(first).chain(of_source))
            .map_err(|problem| DataError::new(files.get(0).location, problem))?;
    }
    Ok(first.rows())
}

/// Checks that all fields have as many rows as the first one.
fn check_equal_rows<'a>(fields: impl IntoIterator<Item = &'a Field>) -> Result<(), DataProblem> {
    let mut fields = fields.into_iter();
    let Some(first) = fields.next() else { return Ok(()) };
    match fields.find(|field| field.rows() != first.rows()) {
        None => Ok(()),
        Some(field) => Err(DataProblem::UnequalRows {
            field: field.name.clone(),
            rows: field.rows(),
            other: first.name.clone(),
            other_rows: first.rows(),
        }),
    }
}

fn missing<'a>(field: &str, available: impl IntoIterator<Item = &'a Field>) -> DataProblem {
    DataProblem::missing_field(field, available.into_iter().map(|field| field.name.as_str()))
}
