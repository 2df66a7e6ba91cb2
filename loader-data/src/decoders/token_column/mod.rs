//! Fields of text that become tokens: the options, and in `column` the decoder.

#[cfg(feature = "tokenizer")]
mod column;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "tokenizer")]
pub use column::TokenColumn;

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

#[cfg(not(feature = "tokenizer"))]
impl TokenizerOptions {
    /// Returns an error that names the feature.
    pub(crate) fn decoder(
        &self,
        _: Option<&crate::source::StoreOptions>,
    ) -> Result<super::field::FieldDecoder, &'static str> {
        Err("this program was built without tokenizers; build it with `--features tokenizer`")
    }
}
