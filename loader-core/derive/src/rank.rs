//! Finds the rank of the tensors in the batch of a field. Frameworks such as burn have the rank in the type of a
//! tensor.

use syn::{GenericArgument, PathArguments, Type, TypePath};

/// What is known of the batch of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// A tensor of this rank, which counts the dimension of the batch too, or a container of such tensors.
    Known(usize),
    /// The batch is a list of the samples, without tensors.
    Kept,
    /// A tuple, or a container of tuples. The tensors of a tuple may have several ranks.
    Tuple,
    /// The derive cannot read the rank from the type.
    Unknown,
}

impl Rank {
    /// Reads the rank from the type of a sample, as far as it is written there.
    pub(crate) fn of_type(ty: &Type) -> Self {
        match ty {
            Type::Array(array) => Self::of_type(&array.elem).with_dimension(),
            Type::Path(path) => Self::of_path(path),
            Type::Paren(inner) => Self::of_type(&inner.elem),
            Type::Group(inner) => Self::of_type(&inner.elem),
            Type::Tuple(tuple) if tuple.elems.is_empty() => Self::Kept,
            Type::Tuple(_) => Self::Tuple,
            // `&'static str`
            Type::Reference(_) => Self::Kept,
            _ => Self::Unknown,
        }
    }

    fn of_path(path: &TypePath) -> Self {
        let Some(segment) = path.path.segments.last() else { return Self::Unknown };
        let parameters: Vec<&Type> = match &segment.arguments {
            PathArguments::AngleBracketed(arguments) => {
                arguments.args.iter().filter_map(|argument| match argument {
                    GenericArgument::Type(ty) => Some(ty),
                    _ => None,
                })
            }
            .collect(),
            _ => Vec::new(),
        };
        match (segment.ident.to_string().as_str(), parameters.as_slice()) {
            ("u8" | "i8" | "u16" | "i16" | "u32" | "i32" | "u64" | "i64" | "usize" | "isize", []) => {
                Self::Known(1)
            }
            ("f16" | "bf16" | "f32" | "f64" | "bool" | "Bool", []) => Self::Known(1),
            ("String" | "char", []) | ("Keep", [_]) => Self::Kept,
            ("Vec", [element]) => Self::of_type(element).with_dimension(),
            ("Box", [Type::Slice(slice)]) => Self::of_type(&slice.elem).with_dimension(),
            // The batch is a container of the inner batch.
            ("Ragged" | "Option" | "List", [inner]) | ("HashMap" | "BTreeMap", [_, inner]) => {
                Self::of_type(inner)
            }
            _ => Self::Unknown,
        }
    }

    fn with_dimension(self) -> Self {
        match self {
            Self::Known(rank) => Self::Known(rank + 1),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn ranks_are_read_from_types() {
        let cases: [(Type, Rank); 17] = [
            (parse_quote!(u8), Rank::Known(1)),
            (parse_quote!(half::bf16), Rank::Known(1)),
            (parse_quote!([[[f32; 28]; 28]; 3]), Rank::Known(4)),
            (parse_quote!(Vec<[i64; 2]>), Rank::Known(3)),
            (parse_quote!(Box<[u16]>), Rank::Known(2)),
            (parse_quote!([bool; 4]), Rank::Known(2)),
            (parse_quote!([Bool; 4]), Rank::Known(2)),
            (parse_quote!(Vec<loader::Bool>), Rank::Known(2)),
            (parse_quote!(Ragged<Vec<u32>>), Rank::Known(2)),
            (parse_quote!(Option<Vec<bool>>), Rank::Known(2)),
            (parse_quote!(std::collections::BTreeMap<String, [u32; 2]>), Rank::Known(2)),
            (parse_quote!(Keep<Vec<[f32; 4]>>), Rank::Kept),
            (parse_quote!(Vec<String>), Rank::Kept),
            (parse_quote!(Tensor<f32>), Rank::Unknown),
            (parse_quote!((f32, u8)), Rank::Tuple),
            (parse_quote!(Option<(f32, u8)>), Rank::Tuple),
            (parse_quote!(Keep<(f32, u8)>), Rank::Kept),
        ];
        for (ty, rank) in cases {
            assert_eq!(Rank::of_type(&ty), rank, "{}", quote::quote!(#ty));
        }
    }
}
