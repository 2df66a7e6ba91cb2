//! What a configuration says about how its files are read.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

use crate::{
    error::{DataError, DataProblem, Result},
    source::Location,
};

/// Options of `datasets` that do not change how files are read.
const ABOUT: [&str; 4] = ["description", "version", "drop_labels", "drop_metadata"];

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Setting {
    None(()),
    Text(String),
    Number(i64),
    Texts(Vec<String>),
    Other(IgnoredAny),
}

/// The options that a configuration sets for the format of its files.
#[derive(Debug, PartialEq)]
pub(crate) struct FormatOptions {
    pub(super) readme: Location,
    pub(super) config: String,
    pub(super) settings: BTreeMap<String, Setting>,
}

/// How a configuration says that CSV is read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CsvSettings {
    pub(crate) delimiter: Option<char>,
    pub(crate) names: Option<Vec<String>>,
}

impl FormatOptions {
    /// Checks that the configuration sets no option, for a format that reads none of them.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] with the name of an option.
    pub(crate) fn none(&self) -> Result<()> {
        match self.all().next() {
            Some((name, _)) => {
                Err(self.unread(name, ", which the loader does not read for files of this format"))
            }
            None => Ok(()),
        }
    }

    /// Returns the options of CSV. As in `datasets`, `delimiter` is preferred to `sep`, and `column_names` to `names`.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] with the name of an option that the loader does not read, or not with its
    /// value.
    pub(crate) fn csv(&self) -> Result<CsvSettings> {
        let mut csv = CsvSettings::default();
        let known = ["sep", "delimiter", "names", "column_names", "header"];
        if let Some((name, _)) = self.all().find(|(name, _)| !known.contains(name)) {
            return Err(self.unread(name, ", which the loader does not read for CSV"));
        }
        if let Some((name, setting)) = self.first_of(["delimiter", "sep"]) {
            let delimiter = setting.delimiter();
            let delimiter =
                delimiter.ok_or_else(|| self.unread(name, " to a value that is not one ASCII character"))?;
            csv.delimiter = Some(delimiter);
        }
        if let Some((name, setting)) = self.first_of(["column_names", "names"]) {
            let Setting::Texts(names) = setting else {
                return Err(self.unread(name, " to a value that is not a list of texts"));
            };
            csv.names = Some(names.clone());
        }
        let problem = match (self.settings.get("header"), &csv.names) {
            (None, _) | (Some(Setting::None(())), Some(_)) | (Some(Setting::Number(0)), None) => {
                return Ok(csv);
            }
            (Some(Setting::Text(header)), _) if header == "infer" => return Ok(csv),
            (Some(Setting::None(())), None) => {
                " to null and gives no names for the columns, but the loader needs names"
            }
            (Some(Setting::Number(0)), Some(_)) => {
                " to 0 and also gives names for the columns, but the loader takes names only for files without a header"
            }
            _ => " to a value that the loader does not support: only the first line can be the header",
        };
        Err(self.unread("header", problem))
    }

    /// Returns the options that are set. `header` also has a meaning if it is null.
    fn all(&self) -> impl Iterator<Item = (&str, &Setting)> {
        let settings = self.settings.iter().map(|(name, setting)| (name.as_str(), setting));
        settings.filter(|(name, setting)| {
            !ABOUT.contains(name) && (*name == "header" || **setting != Setting::None(()))
        })
    }

    fn first_of<'a>(&self, names: [&'a str; 2]) -> Option<(&'a str, &Setting)> {
        let is_set = |(_, setting): &(&str, &Setting)| **setting != Setting::None(());
        names.into_iter().filter_map(|name| Some((name, self.settings.get(name)?))).find(is_set)
    }

    fn unread(&self, name: &str, problem: &str) -> DataError {
        let reason = format!(
            "the configuration `{}` sets `{name}`{problem}; give the files as the path instead, and set the options of \
             their format",
            self.config
        );
        DataError::new(&self.readme, DataProblem::InvalidOption { option: "config", reason })
    }
}

impl Setting {
    /// Returns the text of one ASCII character. `\t` without quotes in YAML is a tab, as in `datasets`.
    fn delimiter(&self) -> Option<char> {
        let Self::Text(text) = self else { return None };
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) if character.is_ascii() => Some(character),
            _ => (text == "\\t").then_some('\t'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv(options: &str) -> Result<(Option<char>, Option<Vec<String>>), String> {
        let settings = yaml_serde::from_str(options).unwrap();
        let config = "en".to_owned();
        let options = FormatOptions { readme: Location::new("README.md"), config, settings };
        match options.csv() {
            Ok(csv) => Ok((csv.delimiter, csv.names)),
            Err(DataError { problem: DataProblem::InvalidOption { option: "config", reason }, .. }) => {
                Err(reason)
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn options_of_csv_are_those_of_datasets() {
        let names = Some(vec!["a".to_owned(), "b".to_owned()]);
        for (options, expected) in [
            ("{}", (None, None)),
            ("sep: \";\"", (Some(';'), None)),
            ("sep: \"\\t\"", (Some('\t'), None)),
            ("sep: \\t", (Some('\t'), None)),
            ("{sep: \";\", delimiter: \"|\"}", (Some('|'), None)),
            ("{sep: \";\", delimiter: null}", (Some(';'), None)),
            ("names: [a, b]", (None, names.clone())),
            ("{names: [c], column_names: [a, b], header: null}", (None, names.clone())),
            ("{names: [a, b], header: infer}", (None, names)),
            ("{header: 0, encoding: null, description: about, version: 1.0.0}", (None, None)),
        ] {
            assert_eq!(csv(options), Ok(expected), "{options}");
        }
        for (options, expected) in [
            ("sep: \"||\"", "sets `sep` to a value that is not one ASCII character"),
            ("delimiter: 1", "sets `delimiter` to a value that is not one ASCII character"),
            ("names: a", "sets `names` to a value that is not a list of texts"),
            ("header: null", "sets `header` to null and gives no names for the columns"),
            ("{header: 0, names: [a, b]}", "sets `header` to 0 and also gives names for the columns"),
            ("header: 1", "sets `header` to a value that the loader does not support"),
            ("header: [0, 1]", "sets `header` to a value that the loader does not support"),
            ("encoding: latin-1", "sets `encoding`, which the loader does not read for CSV"),
            ("dtype: {a: str}", "sets `dtype`, which the loader does not read for CSV"),
        ] {
            let error = csv(options).unwrap_err();
            assert!(error.contains(expected), "{options}: {error}");
        }
    }
}
