//! What `#[sample(...)]` on a field says.

use proc_macro2::Span;
use syn::{Error, Field, Ident, LitInt, LitStr, Result};

/// The dtypes of candle, by the name of the element in Rust.
const CANDLE_DTYPES: &[(&str, &str)] = &[
    ("u8", "U8"),
    ("u32", "U32"),
    ("i16", "I16"),
    ("i32", "I32"),
    ("i64", "I64"),
    ("f16", "F16"),
    ("bf16", "BF16"),
    ("f32", "F32"),
    ("f64", "F64"),
];

/// The options of a field.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldOptions {
    /// `rank = N`: the rank of the tensor in the batch, which counts the dimension of the batch too.
    pub(crate) rank: Option<usize>,
    /// `candle = "i64"`: the variant of candle's `DType` to which the batch is converted.
    pub(crate) candle: Option<Ident>,
}

impl FieldOptions {
    pub(crate) fn parse(field: &Field) -> Result<Self> {
        let mut options = Self::default();
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("sample")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("rank") {
                    options.rank = Some(rank(&meta.value()?.parse()?)?);
                } else if meta.path.is_ident("candle") {
                    options.candle = Some(candle_dtype(&meta.value()?.parse()?)?);
                } else {
                    return Err(meta
                        .error("unknown attribute of a field; expected `rank = N` or `candle = \"DTYPE\"`"));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

fn rank(rank: &LitInt) -> Result<usize> {
    match rank.base10_parse()? {
        0 => Err(Error::new(rank.span(), "the rank counts the dimension of the batch, so it is at least 1")),
        rank => Ok(rank),
    }
}

fn candle_dtype(dtype: &LitStr) -> Result<Ident> {
    let name = dtype.value();
    let known = CANDLE_DTYPES.iter().find(|(known, _)| *known == name);
    known.map(|(_, variant)| Ident::new(variant, Span::call_site())).ok_or_else(|| {
        let names: Vec<_> = CANDLE_DTYPES.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        Error::new(dtype.span(), format!("unknown dtype of candle; expected one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn options_are_read_and_others_are_refused() {
        let parse = |field: Field| FieldOptions::parse(&field).map_err(|error| error.to_string());
        let options = parse(parse_quote!(#[sample(rank = 4, candle = "bf16")] pixels: Tensor<f32>)).unwrap();
        assert_eq!((options.rank, options.candle.unwrap().to_string().as_str()), (Some(4), "BF16"));
        assert_eq!(parse(parse_quote!(#[doc = "x"] x: u8)), Ok(FieldOptions::default()));
        let refused = |field: Field, problem: &str| {
            let error = parse(field).unwrap_err();
            assert!(error.contains(problem), "{error}");
        };
        refused(parse_quote!(#[sample(rank = 0)] pixels: Tensor<f32>), "at least 1");
        refused(parse_quote!(#[sample(rnak = 3)] x: u8), "expected `rank = N`");
        refused(parse_quote!(#[sample(candle = "u64")] x: u64), "one of \"u8\", \"u32\"");
    }

    #[test]
    fn both_derives_refuse_unknown_options_also_without_a_framework() {
        let digit = parse_quote!(
            struct Digit {
                #[sample(rnak = 3)]
                label: u8,
            }
        );
        let core = || parse_quote!(::loader_core);
        for expanded in [crate::expand(&digit, core()), crate::convert::expand(&digit, core())] {
            assert!(expanded.unwrap_err().to_string().contains("unknown attribute of a field"));
        }
    }
}
