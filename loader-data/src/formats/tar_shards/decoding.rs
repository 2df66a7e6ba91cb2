//! Decodes the members of a sample to a record.

use std::str;

use loader_core::Phase;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{KEY, URL, samples::RawSample};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    record::{FieldOptions, Record, Value, shared},
    source::Location,
};

/// What becomes of the members of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Decoding {
    pub(super) fields: FieldOptions,
    /// New names, and for each the fields of which the first that exists gets it.
    pub(super) renamed: Vec<(String, Vec<String>)>,
    /// False if every field stays bytes.
    pub(super) by_extension: bool,
    #[cfg(feature = "image-folder")]
    pub(super) images: Option<crate::decoders::ImageColumn>,
}

impl Default for Decoding {
    fn default() -> Self {
        Self::new(FieldOptions::new(), Vec::new(), true)
    }
}

impl Decoding {
    pub(super) fn new(fields: FieldOptions, renamed: Vec<(String, Vec<String>)>, by_extension: bool) -> Self {
        Self {
            fields,
            renamed,
            by_extension,
            #[cfg(feature = "image-folder")]
            images: None,
        }
    }

    /// True if the record has a field that is made from the field `name` of the archive.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        let Some(selected) = self.fields.selected() else { return true };
        let is_selected = |name: &str| selected.iter().any(|field| field == name);
        let mut renamed = self.renamed.iter().filter(|(_, names)| names.iter().any(|field| field == name));
        is_selected(name) || renamed.any(|(new_name, _)| is_selected(new_name))
    }

    /// Decodes `sample`, which is from the file at `location`.
    pub(super) fn row<R: DeserializeOwned + 'static>(
        &self,
        sample: RawSample,
        location: &Location,
        rng: &mut ChaCha8Rng,
    ) -> Result<R> {
        let error = |member: String, problem| DataError::new(location, problem).at(Position::Member(member));
        let selected = self.fields.selected();
        let is_selected = |name: &str| selected.is_none_or(|names| names.iter().any(|field| field == name));
        let mut record = Record::new();
        if is_selected(KEY) {
            record.set(shared(KEY), sample.key.as_str());
        }
        if is_selected(URL) {
            record.set(shared(URL), &*location.shown());
        }
        let names = self.names(&sample).map_err(|problem| error(sample.key.clone(), problem))?;
        for (position, (field, data)) in sample.fields.into_iter().enumerate() {
            let name = names.as_ref().map_or(&field, |names| &names[position]);
            if !is_selected(name) {
                continue;
            }
            let value = Phase::Decode.measure(|| self.value(&field, data, rng));
            record.set(
                shared(name),
                value.map_err(|problem| error(format!("{}.{field}", sample.key), problem))?,
            );
        }
        let row = self.fields.apply(record).and_then(Record::into_row);
        row.map_err(|problem| error(sample.key, problem))
    }

    /// Returns the names of the fields in the record; `None` if they are those of the archive.
    fn names(&self, sample: &RawSample) -> Result<Option<Vec<String>>, DataProblem> {
        if self.renamed.is_empty() {
            return Ok(None);
        }
        let mut names: Vec<String> = sample.fields.iter().map(|(field, _)| field.clone()).collect();
        for (new_name, alternatives) in &self.renamed {
            let find = |name: &String| sample.fields.iter().position(|(field, _)| field == name);
            let Some(at) = alternatives.iter().find_map(find) else { continue };
            if names[at] != *new_name && (names.contains(new_name) || [KEY, URL].contains(&&**new_name)) {
                return Err(DataProblem::DuplicateField { field: new_name.clone() });
            }
            names[at].clone_from(new_name);
        }
        Ok(Some(names))
    }

    #[cfg_attr(
        not(feature = "image-folder"),
        expect(clippy::needless_pass_by_ref_mut, reason = "only images need random numbers")
    )]
    fn value(&self, field: &str, data: Vec<u8>, rng: &mut ChaCha8Rng) -> Result<Value, DataProblem> {
        #[cfg(feature = "image-folder")]
        if let Some(images) = &self.images
            && crate::images::IMAGE_EXTENSIONS.contains(&field.rsplit('.').next().unwrap_or(field))
        {
            return Ok(images.decode(&data, rng)?.0);
        }
        let _ = rng;
        if self.by_extension { FieldKind::of(field).decode(data) } else { Ok(data.into()) }
    }

    /// Checks what may come from a config.
    pub(super) fn validate(&self) -> Result<(), DataProblem> {
        #[cfg(feature = "image-folder")]
        if let Some(Err(error)) = self.images.as_ref().map(|images| images.validate()) {
            return Err(DataProblem::InvalidOption { option: "images", reason: error.to_string() });
        }
        Ok(())
    }

    /// Text for the fingerprint of a dataset.
    pub(super) fn fingerprint(&self) -> String {
        if *self == Self::default() { String::new() } else { format!(", {self:?}") }
    }
}

/// What the content of a field is, by the extension of its name: what webdataset's basic handlers decode, except what
/// needs Python or a format of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Text,
    Integer,
    Json,
    Bytes,
}

impl FieldKind {
    pub(crate) fn of(field: &str) -> Self {
        match field.rsplit('.').next().unwrap_or(field) {
            "txt" | "text" | "transcript" => Self::Text,
            "cls" | "cls2" | "index" | "inx" | "id" => Self::Integer,
            "json" | "jsn" => Self::Json,
            _ => Self::Bytes,
        }
    }

    fn decode(self, data: Vec<u8>) -> Result<Value, DataProblem> {
        Ok(match self {
            Self::Text => text(data)?.into(),
            Self::Integer => integer(&data)?.into(),
            Self::Json => serde_json::from_slice(&data).map_err(|error| malformed("JSON", &error))?,
            Self::Bytes => data.into(),
        })
    }
}

pub(crate) fn text(data: Vec<u8>) -> Result<String, DataProblem> {
    String::from_utf8(data).map_err(|error| malformed("UTF-8", &error.utf8_error()))
}

pub(crate) fn integer(data: &[u8]) -> Result<i64, DataProblem> {
    let text = str::from_utf8(data).map_err(|error| malformed("UTF-8", &error))?;
    text.trim().parse().map_err(|error| malformed("an integer of 64 bits", &error))
}

fn malformed(format: &'static str, reason: &dyn ToString) -> DataProblem {
    DataProblem::Malformed { format, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn record(decoding: &Decoding, fields: &[(&str, &[u8])]) -> Result<Record> {
        let fields = fields.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec())).collect();
        let sample = RawSample { start: 0, key: "a/1".to_owned(), fields };
        decoding.row(sample, &Location::new("a.tar"), &mut ChaCha8Rng::seed_from_u64(0))
    }

    #[test]
    fn the_extension_decides_what_a_member_becomes() {
        let fields: [(&str, &[u8]); 6] = [
            ("txt", "ä".as_bytes()),
            ("cls", b" -7\n"),
            ("meta.json", br#"{"size": [3, 4], "tag": null}"#),
            ("npy", b"\x93NUMPY"),
            ("jpg", b"\xff\xd8"),
            ("", b""),
        ];
        let found = record(&Decoding::default(), &fields).unwrap();
        assert_eq!(found.get("__key__"), Some(&"a/1".into()));
        assert_eq!(found.get("__url__"), Some(&"a.tar".into()));
        assert_eq!(found.get("txt"), Some(&"ä".into()));
        assert_eq!(found.get("cls"), Some(&(-7i64).into()));
        assert!(matches!(found.get("meta.json"), Some(Value::Record(meta)) if meta.len() == 2));
        assert_eq!(found.get("npy"), Some(&b"\x93NUMPY".to_vec().into()));
        assert_eq!(found.get(""), Some(&Vec::<u8>::new().into()));

        let raw = Decoding { by_extension: false, ..Decoding::default() };
        assert_eq!(record(&raw, &fields).unwrap().get("cls"), Some(&b" -7\n".to_vec().into()));

        for (field, data) in [("cls", &b"7.0"[..]), ("x.txt", b"\xff"), ("json", b"{"), ("id", b"\xff")] {
            let error = record(&Decoding::default(), &[(field, data)]).unwrap_err();
            assert_eq!(error.position, Position::Member(format!("a/1.{field}")));
            assert!(matches!(error.problem, DataProblem::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn the_first_alternative_is_renamed() {
        let alternatives = ["png", "jpg"].map(str::to_owned).to_vec();
        let renamed = vec![("image".to_owned(), alternatives)];
        let decoding =
            Decoding { renamed, fields: FieldOptions::new().select(["image"]), ..Decoding::default() };
        let image =
            |fields: &[(&str, &[u8])]| record(&decoding, fields).map(|found| found.get("image").cloned());
        assert_eq!(image(&[("jpg", b"1"), ("png", b"2")]).unwrap(), Some(b"2".to_vec().into()));
        assert_eq!(image(&[("jpg", b"1")]).unwrap(), Some(b"1".to_vec().into()));
        let twice = image(&[("jpg", b"1"), ("image", b"2")]).unwrap_err();
        assert!(matches!(twice.problem, DataProblem::DuplicateField { field } if field == "image"));
        assert!(matches!(image(&[]).unwrap_err().problem, DataProblem::MissingField { .. }));
        assert!(decoding.is_wanted("jpg") && decoding.is_wanted("image") && !decoding.is_wanted("cls"));
    }
}
