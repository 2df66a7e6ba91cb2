//! Opens datasets of records.

use loader_core::{DataLoader, Dataset, IterableDataset, LoaderOptions, Tensor, Warning};
use loader_data::{DataError, DataProblem, ListedFiles, RecordConfig, Records};

use super::{BadFileEntry, ColumnEntry, OpenFiles, Source, Statistics, Stop, build, statistics};
use crate::{
    inspect::{
        every_file::{Described, EveryFile},
        sheet::thumbnails::thumbnail,
    },
    layout,
};

/// Opens the dataset without the columns of types that are not supported.
fn open_columns(config: &mut RecordConfig, left_out: &mut Vec<ColumnEntry>) -> Result<Records, DataError> {
    loop {
        let error = match config.open_without_bad_files() {
            Ok(records) => return Ok(records),
            Err(error) => error,
        };
        match &error.problem {
            DataProblem::UnsupportedColumn { column, data_type, others }
                if !others.is_empty() && config.select_columns(others.to_vec()) =>
            {
                left_out.push(ColumnEntry { name: column.clone(), data_type: data_type.clone() });
            }
            _ => return Err(error),
        }
    }
}

/// Opens the dataset without files that cannot be listed, in order unless `reads_as_run`. If that fails, opens each
/// file on its own, and then the dataset without the files that failed.
pub(super) fn open(config: RecordConfig, reads_as_run: bool) -> Result<Source, Stop> {
    let mut config = if reads_as_run { config } else { layout::in_order(config) };
    let ListedFiles { mut files, errors } = config.files_and_errors()?;
    let mut bad_files: Vec<_> = errors.iter().map(BadFileEntry::new).collect();
    let mut left_out = Vec::new();
    let records = match open_columns(&mut config, &mut left_out) {
        Ok(records) => records,
        Err(error) => {
            let mut alone = config.clone();
            // False if each file has fields of its own, so that the dataset needs all files.
            if !alone.set_files(Vec::new()) {
                return Err(error.into());
            }
            files.retain(|(path, _)| {
                alone.set_files(vec![path.clone()]);
                let failure = alone.open().err();
                let is_good = failure.is_none();
                bad_files.extend(failure.map(|error| BadFileEntry::new(&error)));
                is_good
            });
            if files.is_empty() || bad_files.is_empty() {
                return Err(error.into());
            }
            config.set_files(files.iter().map(|(path, _)| path.clone()).collect());
            open_columns(&mut config, &mut left_out)?
        }
    };
    Ok(Source {
        bad_files,
        left_out,
        config: None,
        files: files.len() as u64,
        file_bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        opened: OpenFiles::Records { config: Box::new(config), records: Box::new(records) },
    })
}

pub(super) fn statistics(
    records: &Records,
    options: LoaderOptions,
    warn: impl Fn(&Warning) + Send + Sync + 'static,
) -> Result<DataLoader<Statistics>, Stop> {
    match records {
        Records::Map(records) => {
            let described =
                Dataset::map(records.clone(), |record, _cx| Ok(statistics::of_records::of_record(&record)));
            build(DataLoader::builder(described), options, warn)
        }
        Records::Stream(records) => {
            let described = Described { dataset: EveryFile { dataset: records.clone() } };
            Ok(DataLoader::stream(described).options(options).on_warning(warn).build()?)
        }
    }
}

pub(super) fn thumbnails(
    records: &Records,
    options: LoaderOptions,
    warn: impl Fn(&Warning) + Send + Sync + 'static,
) -> Result<DataLoader<Tensor<u8>>, Stop> {
    match records {
        Records::Map(records) => {
            let thumbnails = Dataset::map(records.clone(), thumbnail);
            build(DataLoader::builder(thumbnails), options, warn)
        }
        Records::Stream(records) => {
            let records = IterableDataset::map(EveryFile { dataset: records.clone() }, thumbnail);
            Ok(DataLoader::stream(records).options(options).on_warning(warn).build()?)
        }
    }
}
