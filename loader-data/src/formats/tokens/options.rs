//! Options of tokens.

use loader_core::DType;
use serde::{Deserialize, Serialize};

use super::{
    element::{Token, with_token},
    records::TokenRecords,
};
use crate::{
    error::{DataError, DataProblem},
    options::format_options,
};

format_options! {
    /// What to read as tokens, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::TokensOptions;
    ///
    /// let raw: TokensOptions = serde_json::from_str(
    ///     r#"{"path": "train_*.bin", "dtype": "uint16", "window": 1025, "vocabulary": 50257}"#,
    /// )?;
    /// assert_eq!(raw.open().unwrap_err().to_string(), "`train_*.bin`: no such file; check the path");
    ///
    /// let megatron: TokensOptions =
    ///     serde_json::from_str(r#"{"path": "corpus_text_document", "format": "megatron", "window": 4097}"#)?;
    /// let error = megatron.open().unwrap_err();
    /// assert_eq!(error.to_string(), "`corpus_text_document.idx`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct TokensOptions {
        /// Sets the layout of the files. The default is raw.
        format: TokenFormat = TokenFormat::Raw,
        /// Sets the type of the tokens in raw files. Megatron's index has it.
        dtype: Option<DType> = None,
        /// Sets the number of bytes before the tokens of each raw file. The default is 0. Required for files
        /// that begin as those of llm.c and modded-nanogpt do.
        #[serde(with = "loader_core::units::Size")]
        header_bytes: Option<u64> = None,
        /// Sets the number of tokens in a sample. Required, except for documents.
        window: Option<usize> = None,
        /// Sets the number of tokens from the start of a window to the start of the next. The default is one
        /// less than the window.
        stride: Option<usize> = None,
        /// Sets the token that ends a document. Records then also have `positions` and `segments`.
        end_of_document: Option<i64> = None,
        /// Sets the number of tokens in the vocabulary. A token that is not in it is an error.
        vocabulary: Option<u64> = None,
        /// Sets the type of the tokens in a sample: int64 (the default), int32, uint32 or uint16.
        sample_dtype: DType = DType::I64,
        /// Sets whether samples are documents of Megatron's files instead of windows. The default is false.
        documents: bool = false,
        /// Sets the maximum number of tokens of a document; the rest is cut off. The default is no maximum.
        max_tokens: Option<usize> = None,
        /// Sets the token that pads documents to the longest of a batch. The default is 0.
        pad: Option<i64> = None,
    }
}

/// Layout of token files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TokenFormat {
    /// Nothing but tokens, see [`Tokens::open`](crate::Tokens::open).
    #[default]
    Raw,
    /// Megatron's pairs of `.idx` and `.bin`, see [`Tokens::open_megatron`](crate::Tokens::open_megatron).
    Megatron,
}

impl TokensOptions {
    /// Opens the dataset.
    ///
    /// # Errors
    /// As for [`Tokens::open`](crate::Tokens::open) and
    /// [`Tokens::open_megatron`](crate::Tokens::open_megatron). Also returns [`DataProblem::InvalidOption`]
    /// if options are missing or contradict each other.
    pub fn open(&self) -> Result<TokenRecords, DataError> {
        self.check().map_err(|problem| self.source.error(problem))?;
        TokenRecords::open(self)
    }

    /// Lists the files: of Megatron's pairs the indexes.
    #[cfg(feature = "formats")]
    pub(crate) fn files(&self) -> Result<crate::source::Files, DataError> {
        match self.format {
            TokenFormat::Raw => self.source.files(super::windows::EXTENSIONS),
            TokenFormat::Megatron => super::index::list(&self.source),
        }
    }

    /// Returns an error if options are missing or contradict each other.
    pub(super) fn check(&self) -> Result<(), DataProblem> {
        let is_raw = self.format == TokenFormat::Raw;
        let rules = [
            (
                is_raw && self.dtype.is_none(),
                "dtype",
                "raw files have no header; give the dtype of their tokens",
            ),
            (!is_raw && self.dtype.is_some(), "dtype", "Megatron's index has the dtype; remove the option"),
            (!is_raw && self.header_bytes.is_some(), "header_bytes", "is for raw files only"),
            (is_raw && self.documents, "documents", "only Megatron's files have documents"),
            (!self.documents && self.window.is_none(), "window", "give the number of tokens of a sample"),
            (
                self.documents && self.window.is_some(),
                "window",
                "a sample is a document; remove one of the options",
            ),
            (
                self.documents && self.stride.is_some(),
                "stride",
                "a sample is a document; remove one of the options",
            ),
            (self.documents && self.end_of_document.is_some(), "end_of_document", "a sample is one document"),
            (!self.documents && self.max_tokens.is_some(), "max_tokens", "is for documents only"),
            (!self.documents && self.pad.is_some(), "pad", "is for documents only"),
        ];
        let invalid =
            |option, reason: &str| Err(DataProblem::InvalidOption { option, reason: reason.to_owned() });
        if let Some((_, option, reason)) = rules.into_iter().find(|(is_broken, ..)| *is_broken) {
            return invalid(option, reason);
        }
        if !matches!(self.sample_dtype, DType::I64 | DType::I32 | DType::U32 | DType::U16) {
            return invalid("sample_dtype", "must be int64, int32, uint32 or uint16");
        }
        let (min, max) = with_token!(self.sample_dtype, T => (<T as Token>::MIN, <T as Token>::MAX));
        for (option, token) in [("pad", self.pad), ("end_of_document", self.end_of_document)] {
            if token.is_some_and(|token| token < min || token > max) {
                return invalid(option, "the dtype of the samples cannot hold the token");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let refused = |json: &str| {
            let options: TokensOptions = serde_json::from_str(json).unwrap();
            match options.check() {
                Err(DataProblem::InvalidOption { option, .. }) => option,
                other => panic!("{json}: {other:?}"),
            }
        };
        assert_eq!(refused(r#"{"path": "a.bin", "window": 9}"#), "dtype");
        assert_eq!(refused(r#"{"path": "a.bin", "dtype": "uint16"}"#), "window");
        assert_eq!(refused(r#"{"path": "a.bin", "dtype": "uint16", "documents": true}"#), "documents");
        assert_eq!(
            refused(r#"{"path": "a", "format": "megatron", "dtype": "uint16", "window": 9}"#),
            "dtype"
        );
        assert_eq!(
            refused(r#"{"path": "a", "format": "megatron", "documents": true, "window": 9}"#),
            "window"
        );
        assert_eq!(refused(r#"{"path": "a", "format": "megatron", "window": 9, "pad": 0}"#), "pad");
        let float = r#"{"path": "a", "format": "megatron", "window": 9, "sample_dtype": "float32"}"#;
        assert_eq!(refused(float), "sample_dtype");
        let large = r#"{"path": "a", "format": "megatron", "window": 9, "sample_dtype": "uint16", "end_of_document": 65536}"#;
        assert_eq!(refused(large), "end_of_document");
        assert!(serde_json::from_str::<TokensOptions>(r#"{"path": "a", "widow": 9}"#).is_err());
    }
}
