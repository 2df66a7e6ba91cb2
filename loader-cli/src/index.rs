//! `loader index`: makes the stored indexes of data files, or checks them.

use loader_core::internal::printable;
use loader_data::{
    CsvOptions, DataError, DatasetConfig, IndexPlace, IndexStatus, JsonLinesOptions, RecordConfig,
    StoredIndex, TarOptions, TextLinesOptions,
};
use serde::Serialize;

use crate::{
    arguments::IndexArguments, events::json_line, options::LoaderArguments, reporter::Reporter, settings,
    stop::Stop,
};

/// Runs the command. Returns the number of files whose index is not current.
pub(crate) fn index(arguments: &IndexArguments, reporter: &Reporter) -> Result<u64, Stop> {
    let format = Format::of(arguments)?;
    let before = format.indexes()?;
    let after = if arguments.check || before.iter().all(is_current) {
        before.clone()
    } else {
        format.make()?;
        format.indexes()?
    };
    let mut failures = 0;
    for (before, index) in before.into_iter().zip(after) {
        failures += u64::from(!is_current(&index));
        let is_new = before.status != index.status;
        let entry = IndexEntry { index, is_new };
        if arguments.json {
            reporter.line(&json_line(&entry))?
        } else {
            reporter.line(&printable(entry.text(arguments.check)))?
        }
    }
    Ok(failures)
}

/// True if the index does not have to be made.
fn is_current(index: &StoredIndex) -> bool {
    matches!(index.status, IndexStatus::Current | IndexStatus::NotStored)
}

/// A line of output.
#[derive(Debug, Serialize)]
struct IndexEntry {
    #[serde(flatten)]
    index: StoredIndex,
    /// True if the command has made the index.
    is_new: bool,
}

impl IndexEntry {
    fn text(&self, is_check: bool) -> String {
        let StoredIndex { file, path, status } = &self.index;
        let path = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        match status {
            IndexStatus::Current if self.is_new => format!("{file}: made {path}"),
            IndexStatus::Current => format!("{file}: current, {path}"),
            IndexStatus::NotStored => format!("{file}: needs no stored index"),
            status if is_check => format!("{file}: the index {path} is {status}; run `loader index`"),
            status => format!("{file}: the index {path} is {status} and cannot be written"),
        }
    }
}

/// A format with an index.
enum Format {
    Csv(CsvOptions),
    Json(JsonLinesOptions),
    Text(TextLinesOptions),
    Tar(TarOptions),
}

impl Format {
    fn of(arguments: &IndexArguments) -> Result<Self, Stop> {
        let target = &arguments.target;
        let no_index = |kind: &str| {
            let message = format!(
                "the format `{kind}` has no index; CSV, JSON lines, lines of text (.txt) and tar archives have one"
            );
            Err(Stop::InvalidArguments(message))
        };
        let format = match settings::read(target, &LoaderArguments::default())?.dataset.resolved()? {
            DatasetConfig::Records(config) => match *config {
                RecordConfig::Csv(options) | RecordConfig::CsvStream(options) => Self::Csv(options),
                RecordConfig::JsonLines(options) | RecordConfig::JsonLinesStream(options) => {
                    Self::Json(options)
                }
                RecordConfig::Tar(options) | RecordConfig::IndexedTar(options) => Self::Tar(options),
                RecordConfig::TextLines(options) | RecordConfig::TextLinesStream(options) => {
                    Self::Text(options)
                }
                config => return no_index(config.kind()),
            },
            dataset => return no_index(dataset.kind()),
        };
        Ok(match &arguments.place {
            Some(place) => format.stored_in(place.clone()),
            None => format,
        })
    }

    fn stored_in(self, place: IndexPlace) -> Self {
        match self {
            Self::Csv(options) => Self::Csv(options.index(place)),
            Self::Json(options) => Self::Json(options.index(place)),
            Self::Text(options) => Self::Text(options.index(place)),
            Self::Tar(options) => Self::Tar(options.index(place)),
        }
    }

    fn indexes(&self) -> Result<Vec<StoredIndex>, DataError> {
        match self {
            Self::Csv(options) => options.indexes(),
            Self::Json(options) => options.indexes(),
            Self::Text(options) => options.indexes(),
            Self::Tar(options) => options.indexes(),
        }
    }

    /// Makes the indexes that are not current.
    fn make(&self) -> Result<(), DataError> {
        match self {
            Self::Csv(options) => options.open().map(drop),
            Self::Json(options) => options.open().map(drop),
            Self::Text(options) => options.open().map(drop),
            // `open_indexed` refuses options of a stream.
            Self::Tar(options) => options.open()?.indexed().map(drop),
        }
    }
}
