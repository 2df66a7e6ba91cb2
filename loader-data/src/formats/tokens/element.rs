//! Types of tokens in files and in samples, and the conversion between them.

use loader_core::{DType, Element};

use crate::error::DataProblem;

/// The type of a token in a sample: `i64`, `i32`, `u32` or `u16`.
///
/// PyTorch and burn's backends look up embeddings by `i64` or `i32`, candle by `u32` or `i64`.
pub trait Token: Element + sealed::Sealed {
    /// Smallest token of this type.
    #[doc(hidden)]
    const MIN: i64;
    /// Largest token of this type.
    #[doc(hidden)]
    const MAX: i64;

    /// Converts a token that is between `MIN` and `MAX`.
    #[doc(hidden)]
    fn from_wide(token: i64) -> Self;

    /// Converts the token to `i64`, without loss.
    #[doc(hidden)]
    fn to_wide(self) -> i64;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! tokens {
    ($($token:ty),*) => {
        $(
            impl sealed::Sealed for $token {}

            impl Token for $token {
                const MIN: i64 = <$token>::MIN as i64;
                const MAX: i64 = <$token>::MAX as i64;

                #[inline]
                fn from_wide(token: i64) -> Self {
                    token as $token
                }

                #[inline]
                fn to_wide(self) -> i64 {
                    self as i64
                }
            }
        )*
    };
}

tokens!(i64, i32, u32, u16);

/// Evaluates an expression with the alias `$token` for the type of token that `$dtype` names.
macro_rules! with_token {
    (@ $dtype:expr, $token:ident => $result:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $(loader_core::DType::$name => {
                type $token = $type;
                $result
            })*
            _ => unreachable!("`TokensOptions::check` refuses other types"),
        }
    };
    ($dtype:expr, $token:ident => $result:expr) => {
        $crate::formats::tokens::element::with_token!(@ $dtype, $token => $result; I64 i64, I32 i32, U32 u32, U16 u16)
    };
}

pub(super) use with_token;

/// The tokens that a dataset accepts, as an inclusive range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) min: i64,
    pub(super) max: i64,
}

impl Accepted {
    /// What `T` can hold and a vocabulary of the given size contains.
    pub(super) fn new<T: Token>(vocabulary: Option<u64>) -> Self {
        match vocabulary {
            None => Self { min: T::MIN, max: T::MAX },
            Some(size) => {
                Self { min: 0, max: i64::try_from(size.max(1)).map_or(i64::MAX, |size| size - 1).min(T::MAX) }
            }
        }
    }

    /// The error for a token that is not accepted.
    pub(super) fn refuse(self, token: i64) -> DataProblem {
        DataProblem::TokenOutOfRange { token, min: self.min, max: self.max }
    }
}

/// Returns an error unless a file can have tokens of type `dtype`.
pub(super) fn check_dtype(dtype: DType) -> Result<(), DataProblem> {
    match dtype {
        DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::U32 | DType::I32 | DType::I64 => Ok(()),
        _ => Err(DataProblem::Unsupported(format!(
            "tokens of type {dtype}; a token file has integers of 8 to 32 bits, or int64"
        ))),
    }
}

/// Converts `bytes`, little-endian tokens of type `dtype`, and writes them to `tokens`.
///
/// # Errors
/// Returns the position and the value of the first token that is not accepted.
pub(super) fn convert<T: Token>(
    dtype: DType,
    bytes: &[u8],
    tokens: &mut [T],
    accepted: Accepted,
) -> Result<(), (usize, i64)> {
    macro_rules! from {
        ($stored:ty) => {{
            let (stored, _) = bytes.as_chunks::<{ size_of::<$stored>() }>();
            assert_eq!(
                stored.len(),
                tokens.len(),
                "the other tokens would keep what their memory held before"
            );
            for (token, bytes) in tokens.iter_mut().zip(stored) {
                *token = T::from_wide(i64::from(<$stored>::from_le_bytes(*bytes)));
            }
            // `min` is at most 0 and `max` at least 0, so the clamped range accepts the same tokens.
            let bound =
                |bound: i64| bound.clamp(i64::from(<$stored>::MIN), i64::from(<$stored>::MAX)) as $stored;
            let (min, max) = (bound(accepted.min), bound(accepted.max));
            let refused = |bytes: &[u8; size_of::<$stored>()]| {
                let token = <$stored>::from_le_bytes(*bytes);
                (token < min) | (token > max)
            };
            if (min, max) == (<$stored>::MIN, <$stored>::MAX) {
                return Ok(());
            }
            // Without an early exit, so that the compiler vectorises the loop.
            if !stored.iter().fold(false, |any, bytes| any | refused(bytes)) {
                return Ok(());
            }
            let position = stored.iter().position(refused).expect("a token was refused");
            Err((position, i64::from(<$stored>::from_le_bytes(stored[position]))))
        }};
    }
    match dtype {
        DType::U8 => from!(u8),
        DType::I8 => from!(i8),
        DType::U16 => from!(u16),
        DType::I16 => from!(i16),
        DType::U32 => from!(u32),
        DType::I32 => from!(i32),
        DType::I64 => from!(i64),
        _ => unreachable!("`check_dtype` refuses other types"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted<T: Token>(
        dtype: DType,
        bytes: &[u8],
        vocabulary: Option<u64>,
    ) -> Result<Vec<T>, (usize, i64)> {
        let mut tokens = vec![T::default(); bytes.len() / dtype.size()];
        convert(dtype, bytes, &mut tokens, Accepted::new::<T>(vocabulary)).map(|()| tokens)
    }

    #[test]
    fn tokens_are_little_endian_and_keep_their_value() {
        assert_eq!(converted(DType::U16, &[1, 0, 0xff, 0xff], None), Ok(vec![1i64, 65_535]));
        assert_eq!(converted(DType::U8, &[7, 255], None), Ok(vec![7u16, 255]));
        assert_eq!(converted(DType::I16, &[0xff, 0xff], None), Ok(vec![-1i32]));
        assert_eq!(converted(DType::U32, &[0, 0, 0, 0x80], None), Ok(vec![0x8000_0000u32]));
        assert_eq!(converted(DType::I64, &i64::MIN.to_le_bytes(), None), Ok(vec![i64::MIN]));
    }

    #[test]
    fn a_token_that_does_not_fit_is_refused() {
        let large = [1, 0, 0, 0, 0, 0, 0, 0x80];
        assert_eq!(converted::<i32>(DType::U32, &large, None), Err((1, 0x8000_0000)));
        assert_eq!(converted::<u16>(DType::U32, &large, None), Err((1, 0x8000_0000)));
        assert_eq!(converted::<u32>(DType::I8, &[3, 0xfe], None), Err((1, -2)));
        assert_eq!(converted::<u32>(DType::I64, &(1i64 << 32).to_le_bytes(), None), Err((0, 1 << 32)));

        assert_eq!(converted(DType::U16, &[9, 0], Some(10)), Ok(vec![9i64]));
        assert_eq!(converted::<i64>(DType::U16, &[9, 0, 10, 0], Some(10)), Err((1, 10)));
        assert_eq!(converted::<i64>(DType::I32, &[0xff; 4], Some(10)), Err((0, -1)));
        assert_eq!(converted(DType::U8, &[255], Some(u64::MAX)), Ok(vec![255i64]));
    }

    #[test]
    fn floats_are_no_tokens() {
        assert!(check_dtype(DType::U16).is_ok());
        assert!(matches!(check_dtype(DType::F32), Err(DataProblem::Unsupported(_))));
    }
}
