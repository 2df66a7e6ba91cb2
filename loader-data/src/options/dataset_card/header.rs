//! The header of a README.md: YAML between two lines `---`.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashSet},
    fmt, slice, str,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{TRAIN, options::Setting};
use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, Location, OneOrMany, StoreOptions},
};

/// Name of the file with the header.
pub(super) const README: &str = "README.md";

/// Maximum number of bytes that are searched for the end of the header.
const MAX_BYTES: u64 = 1 << 20;

/// Max product of the number of opening brackets and the number of bytes of the header. For each token, the parser looks
/// at each bracket that is open, so this bounds its time to about a second.
const MAX_BRACKETS: usize = 1 << 29;

/// Maximum number of values in the header. An alias has all values of what it stands for.
const MAX_VALUES: usize = 200_000;

#[derive(Debug, Deserialize)]
struct Header {
    configs: Option<Vec<Configuration>>,
}

/// A configuration of the dataset.
#[derive(Debug, Deserialize)]
pub(super) struct Configuration {
    pub(super) config_name: String,
    #[serde(default)]
    pub(super) default: bool,
    /// The folder that the patterns begin at.
    pub(super) data_dir: Option<String>,
    pub(super) data_files: Option<DataFiles>,
    /// The options that `datasets` takes for the format of the files.
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, Setting>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`data_files` is neither a pattern, nor a list of patterns, nor a list of `split` and `path`"
)]
pub(super) enum DataFiles {
    Patterns(OneOrMany),
    Splits(Vec<SplitFiles>),
}

#[derive(Debug, Deserialize)]
pub(super) struct SplitFiles {
    #[serde(deserialize_with = "text")]
    split: String,
    path: OneOrMany,
}

impl DataFiles {
    /// Returns the splits with their patterns.
    pub(super) fn splits(&self) -> Vec<(&str, Vec<String>)> {
        match self {
            Self::Patterns(patterns) => vec![(TRAIN, patterns.texts())],
            Self::Splits(splits) => {
                splits.iter().map(|split| (&split.split[..], split.path.texts())).collect()
            }
        }
    }
}

impl OneOrMany {
    fn texts(&self) -> Vec<String> {
        let patterns = match self {
            Self::One(pattern) => slice::from_ref(pattern),
            Self::Many(patterns) => patterns,
        };
        // YAML is Unicode.
        patterns.iter().filter_map(|pattern| pattern.to_str().map(str::to_owned)).collect()
    }
}

/// Reads the configurations in the header of the file at `readme`. Returns none if there is no such file, or if its
/// header has none.
pub(super) fn read(readme: &Location, store: &StoreOptions) -> Result<Vec<Configuration>> {
    let Some(files) = Files::find(readme, store)? else { return Ok(Vec::new()) };
    let blob = files.open(0)?;
    let text = blob.read(0..blob.len().min(MAX_BYTES))?;
    let malformed = |reason: String| {
        DataError::new(readme, DataProblem::Malformed { format: "YAML in its header", reason })
    };
    let header = match header(&text) {
        Ok(header) => header,
        Err(NoEnd) if blob.len() > MAX_BYTES => {
            return Err(malformed(format!(
                "no line `---` ends the header in the first {MAX_BYTES} bytes; add it"
            )));
        }
        Err(NoEnd) => return Ok(Vec::new()),
    };
    // Headers of other programs stay unread.
    if !header.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"configs:")) {
        return Ok(Vec::new());
    }
    parse(header).map_err(malformed)
}

fn parse(header: &[u8]) -> Result<Vec<Configuration>, String> {
    let header = str::from_utf8(header).map_err(|error| error.to_string())?;
    let brackets = header.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if brackets * header.len() > MAX_BRACKETS {
        return Err(format!(
            "it has {brackets} opening brackets in {} bytes, which takes too long to parse; write lists with an item on \
             each line, after `- `",
            header.len()
        ));
    }
    // The parser compares each directive with all others.
    if header.lines().any(|line| line.starts_with('%')) {
        return Err("a line begins with `%`, and directives are not supported; remove it".to_owned());
    }
    let left = Cell::new(MAX_VALUES);
    Count(&left)
        .deserialize(yaml_serde::Deserializer::from_str(header))
        .map_err(|error| error.to_string())?;
    let header: Header = yaml_serde::from_str(header).map_err(|error| error.to_string())?;
    let configs = header.configs.unwrap_or_default();
    let mut names = HashSet::new();
    for Configuration { config_name, data_files, .. } in &configs {
        if !names.insert(config_name) {
            return Err(format!("two configurations have the name `{config_name}`; rename one of them"));
        }
        let splits = data_files.as_ref().map(DataFiles::splits);
        if splits.is_some_and(|splits| splits.is_empty() || splits.iter().any(|split| split.1.is_empty())) {
            return Err(format!(
                "`data_files` of `{config_name}` has an empty list; add a pattern, or remove the list"
            ));
        }
    }
    Ok(configs)
}

/// A header without its second line.
#[derive(Debug, PartialEq)]
struct NoEnd;

/// Returns the header of a README.md without its lines `---`; an empty one if there is none.
fn header(readme: &[u8]) -> Result<&[u8], NoEnd> {
    let text = readme.strip_prefix(b"\xef\xbb\xbf").unwrap_or(readme).trim_ascii_start();
    let first = text.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
    if first.trim_ascii_end() != b"---" {
        return Ok(b"");
    }
    let text = &text[first.len()..];
    let mut end = 0;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if line.trim_ascii_end() == b"---" {
            return Ok(&text[..end]);
        }
        end += line.len();
    }
    Err(NoEnd)
}

/// Deserialises a text. A number is one, too.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text")]
    enum Text {
        Text(String),
        Number(i64),
    }
    Ok(match Text::deserialize(deserializer)? {
        Text::Text(text) => text,
        Text::Number(number) => number.to_string(),
    })
}

/// Visits all values and keeps none. Returns an error if there are more than are left.
#[derive(Clone, Copy)]
struct Count<'a>(&'a Cell<usize>);

impl Count<'_> {
    fn one<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.ok_or_else(|| {
            E::custom(format!("with its aliases, it has more than {MAX_VALUES} values; use fewer aliases"))
        })?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.one()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.one()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.one()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.one()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.one()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.one()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(self)?.is_some() {}
        self.one()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(self)?;
        }
        self.one()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_between_two_lines() {
        for (readme, expected) in [
            ("---\nconfigs: []\n---\n# Title\n", Ok("configs: []\n")),
            ("\u{feff}\n---\r\nconfigs: []\r\n---", Ok("configs: []\r\n")),
            ("---\n---\n", Ok("")),
            ("---\nconfigs: []\n", Err(NoEnd)),
            ("# Title\n---\nconfigs: []\n---\n", Ok("")),
            ("----\nconfigs: []\n---\n", Ok("")),
            ("---", Err(NoEnd)),
            ("", Ok("")),
        ] {
            assert_eq!(header(readme.as_bytes()), expected.map(str::as_bytes), "{readme:?}");
        }
    }

    #[test]
    fn aliases_do_not_multiply_patterns_without_a_limit() {
        let list = |item: &str, count| vec![item; count].join(", ");
        let configs = |count| {
            let splits = list("{split: a, path: *many}", count);
            format!(
                "many: &many [{}]\nconfigs:\n- {{config_name: a, data_files: [{splits}]}}\n",
                list("x", 1000)
            )
        };
        assert_eq!(parse(configs(10).as_bytes()).unwrap().len(), 1);
        let error = parse(configs(1000).as_bytes()).unwrap_err();
        assert!(error.contains("more than 200000 values"), "{error}");
    }

    #[test]
    fn what_the_parser_needs_long_for_is_refused_before_it() {
        let brackets = format!("configs:\nx: {}\n", "[\n".repeat(100_000));
        let error = parse(brackets.as_bytes()).unwrap_err();
        assert!(error.contains("100000 opening brackets"), "{error}");
        let flow = format!("tags: [{}]\nconfigs:\n- config_name: a\n", "[],".repeat(10_000));
        assert_eq!(parse(flow.as_bytes()).unwrap().len(), 1);
        let directives = "%TAG !a! x\n---\nconfigs: []\n";
        assert!(parse(directives.as_bytes()).unwrap_err().contains("directives"));
    }

    #[test]
    fn numbers_are_names() {
        let header = "configs:\n- config_name: 2024\n  data_files: [{split: 7, path: a}]\n";
        let configs = parse(header.as_bytes()).unwrap();
        assert_eq!(configs[0].config_name, "2024");
        assert_eq!(configs[0].data_files.as_ref().unwrap().splits()[0].0, "7");
    }
}
