//! The options that only `RecordConfig` has, and what it does with the options of a format.

use std::{collections::BTreeSet, path::PathBuf};

use super::SourceOptions;
use crate::{
    decoders::FieldDecoder,
    error::{DataProblem, Result},
    source::StoreOptions,
};

impl SourceOptions {
    /// Returns the paths with their keys.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let files = self.path.iter_mut().map(|path| ("path".to_owned(), path));
        let tokenizers = self.tokenizers.iter_mut();
        let tokenizers =
            tokenizers.map(|(field, options)| (format!("tokenizers.{field}.path"), &mut options.path));
        files.chain(self.store.iter_mut().filter_map(StoreOptions::path_mut)).chain(tokenizers)
    }

    /// Returns an error if `drop_nulls` is set for random access.
    pub(crate) fn refuse_drop_nulls(&self) -> Result<()> {
        if self.drop_nulls.is_empty() {
            return Ok(());
        }
        let reason = "only a stream can leave out records: set a kind that is read in order, such as `parquet-stream`; for \
                      random access, set `fill`, or write the files without these rows"
            .to_owned();
        Err(self.error(DataProblem::InvalidOption { option: "drop_nulls", reason }))
    }

    /// Returns an error if `drop_nulls` has a name that is not in `names`, the fields of all records.
    pub(crate) fn check_drop_nulls(&self, names: &[String]) -> Result<()> {
        let Some(unknown) = self.drop_nulls.iter().find(|name| !names.contains(name)) else { return Ok(()) };
        let missing = DataProblem::missing_field(unknown, names.iter().map(String::as_str));
        let reason = format!("{missing}; use one of these, or remove the option");
        Err(self.error(DataProblem::InvalidOption { option: "drop_nulls", reason }))
    }

    /// Returns the name of an option that needs `RecordConfig`; `None` if none is set.
    pub(super) fn decoded_by(&self) -> Option<&'static str> {
        if !self.images.is_empty() {
            return Some("images");
        }
        if !self.audio.is_empty() {
            return Some("audio");
        }
        if !self.tokenizers.is_empty() {
            return Some("tokenizers");
        }
        if !self.drop_nulls.is_empty() {
            return Some("drop_nulls");
        }
        None
    }

    /// Empties the options that need `RecordConfig`. Returns the options as they were.
    pub(crate) fn take_decoded(&mut self) -> Self {
        let others = Self {
            path: self.path.clone(),
            given: self.given.clone(),
            config: self.config.clone(),
            split: self.split.clone(),
            store: self.store.clone(),
            ..Self::default()
        };
        std::mem::replace(self, others)
    }

    /// Returns the decoders that the options `images`, `audio` and `tokenizers` describe, by field. Reads the files of
    /// the tokenizers.
    pub(crate) fn decoders(&self) -> Result<Vec<(String, FieldDecoder)>> {
        let failed = |option, name: &str, reason: &dyn std::fmt::Display| {
            self.error(DataProblem::InvalidOption { option, reason: format!("`{name}`: {reason}") })
        };
        let mut decoders: Vec<(String, FieldDecoder)> = Vec::new();
        let mut fields = BTreeSet::new();
        let mut add = |option, name: &str| {
            if fields.insert(name.to_owned()) {
                Ok(())
            } else {
                Err(failed(option, name, &"another option decodes this field too; remove one of the two"))
            }
        };
        for (name, options) in &self.images {
            let column = options.column().map_err(|error| failed("images", name, &error))?;
            add("images", name)?;
            column.mask_fields().iter().try_for_each(|mask| add("images", mask))?;
            decoders.push((name.clone(), column.into()));
        }
        for (name, transform) in &self.audio {
            transform.validate().map_err(|problem| failed("audio", name, &problem))?;
            add("audio", name)?;
            decoders.push((name.clone(), transform.clone().into()));
        }
        for (name, options) in &self.tokenizers {
            let decoder = options.decoder(self.store.as_ref());
            let decoder = decoder.map_err(|error| failed("tokenizers", name, &error))?;
            add("tokenizers", name)?;
            decoders.push((name.clone(), decoder));
        }
        Ok(decoders)
    }
}
