//! Tokenizers of Hugging Face, for datasets of text.

use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};

use loader_core::Tensor;
use serde::{Deserialize, Serialize};
use tokenizers::{ModelWrapper, PreTokenizerWrapper, pre_tokenizers::split::SplitPattern};

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, Location, StoreOptions},
};

/// Maximum number of characters of one class in a row that are given to a regular expression. For an expression with a
/// lookahead, `fancy-regex` keeps a state for each character, and may go back over them once for each alternative. It
/// fails at a million. `tokenizers` then drops the rest of the text or does not split it, and returns no error.
const MAX_RUN: usize = 250_000;

/// A tokenizer in Hugging Face's format (`tokenizer.json`), from text to token ids (`u32`). Main reads the
/// file once, and shares it with the workers, each of which parses it for its first text.
///
/// The ids are those of the Python package `tokenizers`, with the normalisation, truncation and padding that
/// the file says. The expressions in the file are matched by the crate `fancy-regex` instead of Oniguruma,
/// which is a C library. A file with the option `dropout` is refused, because its ids are random.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("poems.txt");
/// # std::fs::write(&path, "The workers don't stay.\nThe batches do.\n")?;
/// use loader_core::{Dataset, DataLoader, IterableDataset, pack::Packing};
/// use loader_data::{TextLines, Tokenizer};
///
/// let tokenizer = Tokenizer::open("tests/formats/fixtures/tokenizer")?;
/// assert_eq!(tokenizer.decode(&tokenizer.encode("The workers")?)?, "The workers");
///
/// let documents = TextLines::open(&path)?.map_with(tokenizer, |tokenizer, line, _cx| Ok(tokenizer.encode(&line)?));
/// let loader = DataLoader::stream(documents.into_stream().pack(Packing::new(8))?).batch_size(2).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.tokens.shape(), [2, 8]);
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
pub struct Tokenizer {
    file: String,
    /// The content of the file, in shared memory.
    json: Tensor<u8>,
    special_tokens: bool,
    #[serde(skip)]
    parsed: OnceLock<Arc<tokenizers::Tokenizer>>,
}

impl Tokenizer {
    /// Opens the file at `path`, or the file `tokenizer.json` in the folder `path`. The URL of a folder ends with `/`.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, or it is not a tokenizer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = Location::new(path);
        let file = if path.is_folder() { path.join("tokenizer.json") } else { path };
        let blob = Files::list_with([file.as_path()], &[], &StoreOptions::current())?.open(0)?;
        let json = blob.read(0..blob.len())?;
        let shape = [json.len()];
        let json = Tensor::from_vec(json, shape)
            .map_err(|error| blob.error(0, DataProblem::Memory(error.to_string())))?;
        let file = file.shown().into_owned();
        let tokenizer = Self { file, json, special_tokens: true, parsed: OnceLock::new() };
        tokenizer.parsed()?;
        Ok(tokenizer)
    }

    /// If true (the default), [`encode`](Self::encode) adds the special tokens that the file says, such as
    /// those for the beginning and the end of a document.
    #[must_use]
    pub fn special_tokens(self, special_tokens: bool) -> Self {
        Self { special_tokens, ..self }
    }

    /// Returns the ids of all tokens of `text`. Ignores `truncation` and `padding` of the file, as Hugging Face's
    /// `transformers` do unless they are asked for them.
    ///
    /// # Errors
    /// Returns [`DataError`] if the tokenizer has no token for a part of the text, nor one for unknown parts. A tokenizer
    /// that splits text with a regular expression also returns an error if the text has more than 250,000 characters in a
    /// row that are all whitespace, all letters, all digits, or all others, because `fancy-regex` fails on much longer
    /// runs.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.parsed()?;
        if has_long_run(text) && tokenizer.get_pre_tokenizer().is_some_and(has_expression) {
            let reason = format!(
                "the text has more than {MAX_RUN} characters in a row that are all whitespace, all letters, all digits, or \
                 all others; cut it, or leave it out"
            );
            return Err(DataError::new(format!("`{}`", self.file), DataProblem::Unsupported(reason)));
        }
        let encoding = tokenizer.encode_fast(text, self.special_tokens);
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|error| self.error(error))
    }

    /// Returns the text of `ids`, without special tokens.
    ///
    /// # Errors
    /// Returns [`DataError`] if the decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.parsed()?.decode(ids, true).map_err(|error| self.error(error))
    }

    /// Returns the id of `token`, such as `</s>`; `None` if it is not in the vocabulary.
    ///
    /// # Errors
    /// Returns [`DataError`] if the tokenizer cannot be parsed.
    pub fn id(&self, token: &str) -> Result<Option<u32>> {
        Ok(self.parsed()?.token_to_id(token))
    }

    /// Number of tokens in the vocabulary, with the added ones.
    ///
    /// # Errors
    /// As for [`id`](Self::id).
    pub fn vocab_size(&self) -> Result<usize> {
        Ok(self.parsed()?.get_vocab_size(true))
    }

    /// Returns a fingerprint of the file and the options of the tokenizer.
    #[cfg(feature = "formats")]
    pub(crate) fn fingerprint(&self) -> String {
        let special_tokens = if self.special_tokens { "" } else { ", no special tokens" };
        format!("#{:016x}{special_tokens}", xxhash_rust::xxh3::xxh3_64(self.json.as_slice()))
    }

    fn parsed(&self) -> Result<&tokenizers::Tokenizer> {
        if self.parsed.get().is_none() {
            let parsed = tokenizers::Tokenizer::from_bytes(self.json.as_slice());
            let mut parsed = parsed.map_err(|error| self.error(error))?;
            // They would cut long texts, and give padding as tokens.
            parsed.with_truncation(None).map_err(|error| self.error(error))?.with_padding(None);
            if let ModelWrapper::BPE(model) = parsed.get_model()
                && model.dropout.is_some_and(|dropout| dropout > 0.0)
            {
                let reason = "it drops merges at random (`dropout`), so that no run gives the same tokens again; \
                              set `dropout` to null in the file";
                return Err(DataError::new(
                    format!("`{}`", self.file),
                    DataProblem::Unsupported(reason.to_owned()),
                ));
            }
            // If another thread was faster, both have parsed the same.
            drop(self.parsed.set(Arc::new(parsed)));
        }
        Ok(self.parsed.get().expect("it was set above"))
    }

    fn error(&self, error: tokenizers::Error) -> DataError {
        let problem = DataProblem::Malformed { format: "tokenizer", reason: error.to_string() };
        DataError::new(format!("`{}`", self.file), problem)
    }
}

/// True if more than [`MAX_RUN`] characters in a row are of one class.
fn has_long_run(text: &str) -> bool {
    let class = |character: char| {
        [char::is_whitespace, char::is_numeric, char::is_alphabetic].iter().position(|is_in| is_in(character))
    };
    let (mut last, mut run) = (None, 0);
    // A text has no more characters than bytes.
    text.len() > MAX_RUN
        && text.chars().map(class).any(|class| {
            run = if last == Some(class) { run + 1 } else { 1 };
            last = Some(class);
            run > MAX_RUN
        })
}

/// True if the tokenizer splits text with a regular expression, which `fancy-regex` matches.
fn has_expression(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(bytes) => bytes.use_regex,
        PreTokenizerWrapper::Split(split) => matches!(split.pattern, SplitPattern::Regex(_)),
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref().iter().any(has_expression),
        _ => false,
    }
}

/// Tokenizers with the same content and options are equal.
impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.special_tokens == other.special_tokens && self.json.as_slice() == other.json.as_slice()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/tokenizer");

    #[derive(Deserialize)]
    struct Case {
        text: String,
        ids: Vec<u32>,
        with_special: Vec<u32>,
    }

    #[test]
    fn the_ids_are_those_of_python() {
        let cases = fs::read_to_string(Path::new(FIXTURES).join("expected.json")).unwrap();
        let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
        assert_eq!(cases.len(), 5);
        let tokenizer = Tokenizer::open(FIXTURES).unwrap();
        for Case { text, ids, with_special } in cases {
            assert_eq!(tokenizer.encode(&text).unwrap(), with_special, "{text:?}");
            let plain = tokenizer.clone().special_tokens(false);
            assert_eq!(plain.encode(&text).unwrap(), ids, "{text:?}");
            assert_eq!(plain.decode(&ids).unwrap(), text);
        }
        assert_eq!((tokenizer.id("</s>").unwrap(), tokenizer.id("nothing").unwrap()), (Some(1), None));
    }

    #[test]
    fn a_long_run_of_one_class_is_refused_where_an_expression_splits_the_text() {
        let folder = tempfile::tempdir().unwrap();
        let whole = fs::read_to_string(Path::new(FIXTURES).join("tokenizer.json")).unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&whole).unwrap();
        let mut open = |pre_tokenizer: serde_json::Value| {
            file["pre_tokenizer"] = pre_tokenizer;
            fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
            Tokenizer::open(folder.path()).unwrap()
        };
        let split = serde_json::json!({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\S+"},
            "behavior": "Removed", "invert": true});
        let parts = serde_json::json!({"type": "Sequence", "pretokenizers": [split]});
        let spaces = |count| " ".repeat(count) + "a";
        for pre_tokenizer in [split, parts] {
            let tokenizer = open(pre_tokenizer);
            for character in [" ", "é", "5", "-"] {
                let error = tokenizer.encode(&format!("a{}", character.repeat(MAX_RUN + 2))).unwrap_err();
                assert!(matches!(error.problem, DataProblem::Unsupported(_)), "{error}");
                assert!(error.to_string().contains("tokenizer.json"), "{error}");
            }
            assert!(!tokenizer.encode(&spaces(MAX_RUN)).unwrap().is_empty());
            // Without the limit, the crate leaves out the whole text.
            let lost = tokenizer.parsed().unwrap().encode_fast(spaces(1_100_000), false).unwrap();
            assert!(lost.is_empty());
        }
        let tokenizer = open(serde_json::json!({"type": "WhitespaceSplit"}));
        assert!(!tokenizer.encode(&spaces(MAX_RUN + 1)).unwrap().is_empty());
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let truncation =
            r#""truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0}"#;
        let padding = r#""padding":{"strategy":{"Fixed":64},"direction":"Right","pad_to_multiple_of":null,
            "pad_id":1,"pad_type_id":0,"pad_token":"</s>"}"#;
        let whole = fs::read_to_string(Path::new(FIXTURES).join("tokenizer.json")).unwrap();
        let changed = whole.replace(r#""truncation":null"#, truncation).replace(r#""padding":null"#, padding);
        assert_eq!(changed.len(), whole.len() + truncation.len() - 17 + padding.len() - 14);
        fs::write(folder.path().join("tokenizer.json"), changed).unwrap();
        let [expected, found] = [Path::new(FIXTURES), folder.path()]
            .map(|folder| Tokenizer::open(folder).unwrap().encode("a text of several words").unwrap());
        assert!(found.len() > 2, "{found:?}");
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let whole = fs::read(Path::new(FIXTURES).join("tokenizer.json")).unwrap();
        let path = folder.path().join("tokenizer.json");
        let refusal = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            Tokenizer::open(folder.path()).unwrap_err()
        };
        for content in [&b""[..], b"{}", &whole[..whole.len() / 2], b"\xFF\xFE"] {
            let error = refusal(content);
            assert!(matches!(error.problem, DataProblem::Malformed { .. }), "{error}");
            assert!(error.to_string().contains("tokenizer.json"), "{error}");
        }
        let random = String::from_utf8(whole).unwrap().replace("\"dropout\":null", "\"dropout\":0.1");
        let error = refusal(random.as_bytes());
        assert!(
            matches!(&error.problem, DataProblem::Unsupported(reason) if reason.contains("dropout")),
            "{error}"
        );
        let missing = Tokenizer::open(folder.path().join("other.json")).unwrap_err();
        assert!(matches!(missing.problem, DataProblem::NotFound), "{missing}");
    }
}
