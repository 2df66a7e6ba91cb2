//! Tokens as records.

use loader_core::{DType, Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use super::{
    documents::Documents,
    element::{Token, with_token},
    options::{TokenFormat, TokensOptions},
    segments::{TokenWindow, segmented},
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
    kind: TokenSamples,
    /// Type of the tokens in a record.
    dtype: DType,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum TokenSamples {
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
            return Ok(Self { kind: TokenSamples::Documents(documents, options.pad.unwrap_or(0)), dtype });
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
            None => TokenSamples::Windows(windows),
            Some(end) => {
                with_token!(dtype, T => windows.check_positions::<T>())?;
                TokenSamples::Segmented(windows, end)
            }
        };
        Ok(Self { kind, dtype })
    }
}

impl Dataset for TokenRecords {
    type Sample = Record;

    fn len(&self) -> usize {
        match &self.kind {
            TokenSamples::Windows(windows) | TokenSamples::Segmented(windows, _) => windows.len(),
            TokenSamples::Documents(documents, _) => documents.len(),
        }
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        let mut records = self.get_many(&[index], cx)?;
        Ok(records.pop().expect("`get_many` returns a record for each index"))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        let is_collated = cx.is_collated::<Self>();
        with_token!(self.dtype, T => self.records::<T>(indices, is_collated))
    }

    /// Returns the fingerprint of the windows or documents.
    fn fingerprint(&self) -> String {
        match &self.kind {
            TokenSamples::Windows(windows) => windows.fingerprint(),
            TokenSamples::Segmented(windows, end) => {
                format!("{}, end_of_document {end}", windows.fingerprint())
            }
            TokenSamples::Documents(documents, _) => documents.fingerprint(),
        }
    }
}

impl TokenRecords {
    fn records<T: Token>(&self, indices: &[usize], is_collated: bool) -> anyhow::Result<Vec<Record>> {
        match &self.kind {
            TokenSamples::Windows(windows) => {
                let windows = windows.read_many::<T>(indices, is_collated)?.into_iter();
                Ok(windows.map(|tokens| record([("tokens", tokens.into())])).collect())
            }
            TokenSamples::Segmented(windows, end) => {
                let windows = windows.read_many(indices, is_collated)?.into_iter();
                windows.map(|tokens| Ok(of_segments(segmented(tokens, T::from_wide(*end))?))).collect()
            }
            TokenSamples::Documents(documents, pad) => {
                let tokens = |&index| -> anyhow::Result<Record> {
                    let tokens = documents.read::<T>(index)?;
                    Ok(record([("tokens", Value::Ragged(tokens.into(), Scalar::new(T::from_wide(*pad))))]))
                };
                indices.iter().map(tokens).collect()
            }
        }
    }
}

fn of_segments<T: Token>(window: TokenWindow<T>) -> Record {
    record([
        ("tokens", window.tokens.into()),
        ("positions", window.positions.into()),
        ("segments", window.segments.into()),
    ])
}

fn record<const N: usize>(fields: [(&'static str, Value); N]) -> Record {
    fields.into_iter().collect()
}
