//! Makes tokens of the value of one field.

use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        decode::{Decode, of_field},
        field::FieldDecoder,
        tokenizer::Tokenizer,
    },
    TokenizerOptions,
};
use crate::{
    error::{DataError, DataProblem, Result},
    record::{Record, Scalar, Value},
    source::{Location, StoreOptions},
};

/// Makes tokens of a field of text. A config describes it with [`TokenizerOptions`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenColumn {
    tokenizer: Tokenizer,
    end_of_document: Option<i64>,
    pad: i64,
}

impl TokenizerOptions {
    /// Opens the tokenizer, with the options of the dataset for servers, or with those of the scope.
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
}

impl TokenColumn {
    /// Returns the tokens of the text `value` of the field `name`.
    fn tokens(&self, name: &str, value: &Value) -> Result<Value, DataProblem> {
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
}

impl Decode for TokenColumn {
    fn kind(&self) -> &'static str {
        "tokens of"
    }

    fn validate(&self) -> Result<(), DataProblem> {
        Ok(())
    }

    fn decode(&self, record: &mut Record, name: &str, _: &mut ChaCha8Rng) -> Result<Value> {
        of_field(record, self.kind(), name, |value| self.tokens(name, value))
    }

    /// Returns a fingerprint of the tokenizer and of `end_of_document`.
    fn fingerprint(&self) -> Option<String> {
        let Self { tokenizer, end_of_document, .. } = self;
        let end = end_of_document.map(|end| format!(", end_of_document {end}")).unwrap_or_default();
        Some(format!("tokens({}{end})", tokenizer.fingerprint()))
    }
}
