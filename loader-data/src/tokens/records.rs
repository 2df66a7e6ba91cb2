//! Tokens as records.

use loader_core::{DType, Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use super::{
    documents::Documents,
    element::{Token, with_token},
    options::{TokenFormat, TokensOptions},
    segments::segmented,
    windows::Windows,
};
use crate::{
    error::Result,
    record::{Record, Scalar, Value},
};

/// A dataset of tokens whose samples are [`Record`]s. It is opened from [`TokensOptions`], such as those of a
/// config file.
///
/// A record has the field `tokens`, a tensor of shape `[window]`. With the option `end_of_document` it also
/// has `positions` and `segments`, see [`TokenWindow`](crate::TokenWindow). With the option `documents` it
/// has the field `tokens` with a whole document, which a batch pads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenRecords {
    kind: Kind,
    /// Type of the tokens in a record.
    dtype: DType,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Kind {
    Windows(Windows),
    /// Windows and the token that ends a document.
    Segmented(Windows, i64),
    /// Documents and the token that pads them.
    Documents(Documents, i64),
}

impl TokenRecords {
    /// Opens the files that `options` name. The options do not contradict each other.
    pub(super) fn open(options: &TokensOptions) -> Result<Self> {
        let dtype = options.sample_dtype;
        if options.documents {
            let mut documents = Documents::open(&options.source)?;
            if let Some(tokens) = options.max_tokens {
                documents = documents.max_tokens(tokens);
            }
            if let Some(size) = options.vocabulary {
                documents = documents.vocabulary(size);
            }
            return Ok(Self { kind: Kind::Documents(documents, options.pad.unwrap_or(0)), dtype });
        }
        let window = options.window.unwrap_or(0);
        let mut windows = match (options.format, options.dtype) {
            (TokenFormat::Raw, Some(dtype)) => Windows::open_raw(&options.source, dtype, window)?,
            _ => Windows::open_megatron(&options.source, window)?,
        };
        if let Some(bytes) = options.header_bytes {
            windows = windows.header_bytes(bytes)?;
        }
        windows.check_header()?;
        if let Some(stride) = options.stride {
            windows = windows.stride(stride)?;
        }
        if let Some(size) = options.vocabulary {
            windows = windows.vocabulary(size);
        }
        let kind = match options.end_of_document {
            None => Kind::Windows(windows),
            Some(end) => {
                with_token!(dtype, T => windows.check_positions::<T>())?;
                Kind::Segmented(windows, end)
            }
        };
        Ok(Self { kind, dtype })
    }
}

impl Dataset for TokenRecords {
    type Sample = Record;

    fn len(&self) -> usize {
        match &self.kind {
            Kind::Windows(windows) | Kind::Segmented(windows, _) => windows.len(),
            Kind::Documents(documents, _) => documents.len(),
        }
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Record> {
        with_token!(self.dtype, T => self.record::<T>(index))
    }

    /// Returns the fingerprint of the windows or documents.
    fn fingerprint(&self) -> String {
        match &self.kind {
            Kind::Windows(windows) => windows.fingerprint(),
            Kind::Segmented(windows, end) => format!("{}, end_of_document {end}", windows.fingerprint()),
            Kind::Documents(documents, _) => documents.fingerprint(),
        }
    }
}

impl TokenRecords {
    fn record<T: Token>(&self, index: usize) -> anyhow::Result<Record> {
        let fields: Vec<(&str, Value)> = match &self.kind {
            Kind::Windows(windows) => vec![("tokens", windows.read::<T>(index)?.into())],
            Kind::Segmented(windows, end) => {
                let window = segmented(windows.read(index)?, T::from_wide(*end))?;
                vec![
                    ("tokens", window.tokens.into()),
                    ("positions", window.positions.into()),
                    ("segments", window.segments.into()),
                ]
            }
            Kind::Documents(documents, pad) => {
                let tokens = documents.read::<T>(index)?;
                vec![("tokens", Value::Ragged(tokens.into(), Scalar::new(T::from_wide(*pad))))]
            }
        };
        Ok(fields.into_iter().collect())
    }
}
