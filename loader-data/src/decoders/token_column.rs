//! Fields of text that become tokens.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::field::FieldDecoder;
#[cfg(feature = "tokenizer")]
use super::tokenizer::Tokenizer;
use crate::source::StoreOptions;
#[cfg(feature = "tokenizer")]
use crate::{
    error::{DataError, DataProblem, Result},
    record::{Scalar, Value},
    source::Location,
};

/// Options of the tokenizer of a field of text, for example from a config file. `path` is the argument of
/// [`Tokenizer::open`](crate::Tokenizer::open). The other options set which tokens are added.
///
/// A record then has a sequence of `i64` in the place of the text. A batch pads it to its longest sequence.
///
/// # Examples
/// ```
/// use loader_data::RecordConfig;
///
/// let text = r#"{"kind": "json-lines", "path": "train/*.jsonl", "fields": ["text"], "tokenizers": {
///     "text": {"path": "tokenizer.json", "end_of_document": "</s>"}
/// }}"#;
/// let config: RecordConfig = serde_json::from_str(text)?;
/// assert_eq!(config.kind(), "json-lines");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenizerOptions {
    /// The file of the tokenizer, or the folder with its file `tokenizer.json`. A URL is read with the options `store`
    /// of the dataset.
    pub(crate) path: PathBuf,
    /// Whether the tokenizer adds the special tokens that its file defines. The default is true.
    #[serde(default = "yes")]
    special_tokens: bool,
    /// The token that is added at the end of each text, such as `</s>`. The default is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_of_document: Option<String>,
    /// The token that pads the texts of a batch to the longest, such as `<pad>`. The default is the token with
    /// the number 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pad: Option<String>,
}

fn yes() -> bool {
    true
}

impl TokenizerOptions {
    /// Opens the tokenizer, with the options of the dataset for servers, or with those of the scope.
    #[cfg(feature = "tokenizer")]
    pub(crate) fn decoder(&self, store: Option<&StoreOptions>) -> Result<FieldDecoder> {
        let open = || Tokenizer::open(&self.path);
        let tokenizer = store.map_or_else(open, |store| store.scope(open))?;
        let tokenizer = tokenizer.special_tokens(self.special_tokens);
        let token = |option, token: &Option<String>| match token {
            None => Ok(None),
            Some(token) => match tokenizer.id(token)? {
                Some(id) => Ok(Some(i64::from(id))),
                None => {
                    let reason = format!("the vocabulary has no token `{token}`");
                    let file = Location::new(&self.path);
                    Err(DataError::new(file, DataProblem::InvalidOption { option, reason }))
                }
            },
        };
        let end_of_document = token("end_of_document", &self.end_of_document)?;
        let pad = token("pad", &self.pad)?.unwrap_or(0);
        Ok(FieldDecoder::Tokens(TokenColumn { tokenizer, end_of_document, pad }))
    }

    /// Returns an error that names the feature.
    #[cfg(not(feature = "tokenizer"))]
    pub(crate) fn decoder(&self, _: Option<&StoreOptions>) -> Result<FieldDecoder, &'static str> {
        Err("this program was built without tokenizers; build it with `--features tokenizer`")
    }
}

/// Makes tokens of a field of text. A config describes it with [`TokenizerOptions`].
#[cfg(feature = "tokenizer")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenColumn {
    tokenizer: Tokenizer,
    end_of_document: Option<i64>,
    pad: i64,
}

#[cfg(feature = "tokenizer")]
impl TokenColumn {
    /// Returns the tokens of the text `value` of the field `name`.
    pub(crate) fn decode(&self, name: &str, value: &Value) -> Result<Value, DataProblem> {
        let text = match value {
            Value::Text(text) => text,
            Value::Null => return Err(DataProblem::Null { field: name.to_owned() }),
            other => {
                let (field, expected) = (name.to_owned(), "a text".to_owned());
                return Err(DataProblem::WrongType { field, expected, found: other.kind() });
            }
        };
        let ids = self.tokenizer.encode(text).map_err(|error| error.problem)?;
        let tokens: Vec<i64> = ids.into_iter().map(i64::from).chain(self.end_of_document).collect();
        let shape = [tokens.len()];
        let tokens = loader_core::Tensor::from_vec(tokens, shape)
            .map_err(|error| DataProblem::Memory(error.to_string()))?;
        Ok(Value::Ragged(tokens.into(), Scalar::new(self.pad)))
    }

    /// Returns a fingerprint of the tokenizer and of `end_of_document`.
    pub(crate) fn fingerprint(&self) -> String {
        let Self { tokenizer, end_of_document, .. } = self;
        let end = end_of_document.map(|end| format!(", end_of_document {end}")).unwrap_or_default();
        format!("tokens({}{end})", tokenizer.fingerprint())
    }
}
