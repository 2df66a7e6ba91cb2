//! Expands `#[sample(burn)]` and `#[sample(candle)]` into a struct of converted fields.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{DeriveInput, Error, Field, Fields, Ident, Member, Path, Result, parse_quote, spanned::Spanned};

use crate::{Options, declare, field::FieldOptions, member_name, members, rank::Rank};

/// A framework whose adapter converts batches.
#[derive(Clone, Copy)]
pub(crate) struct Framework {
    /// Name in the attribute, such as `candle`.
    pub(crate) attribute: &'static str,
    /// What the name of the generated struct ends with, and the associated type of the trait, such as `Candle`.
    name: &'static str,
    /// The adapter's crate.
    crate_name: &'static str,
    /// The trait in the adapter's crate.
    trait_name: &'static str,
    /// The method of the trait.
    method: &'static str,
    /// What the method does, for its docs.
    does: &'static str,
    /// True if the rank is a part of the type of a tensor. The associated type and the method then have it as
    /// a parameter, and the adapter's crate has a trait `FixedRank`, with a method `to_burn_fixed_rank`.
    is_ranked: bool,
}

/// All frameworks.
pub(crate) const FRAMEWORKS: &[Framework] = &[
    Framework {
        attribute: "burn",
        name: "Burn",
        crate_name: "loader_burn",
        trait_name: "ToBurn",
        method: "to_burn",
        does: "Returns the batch as burn tensors. On burn's backend `flex` they share the memory of the batch.",
        is_ranked: true,
    },
    Framework {
        attribute: "candle",
        name: "Candle",
        crate_name: "loader_candle",
        trait_name: "ToCandle",
        method: "to_candle",
        does: "Copies the tensors of the batch to `device`, as candle tensors.",
        is_ranked: false,
    },
];

/// Generates for each framework of `options` a struct of its tensors for the batch of the struct `input`.
pub(crate) fn expand(options: &Options, input: &DeriveInput, fields: &Fields) -> Result<TokenStream> {
    options.frameworks.iter().map(|framework| framework.expand(options, input, fields)).collect()
}

/// A field of a batch, converted.
struct Converted {
    ty: TokenStream,
    value: TokenStream,
}

impl Framework {
    /// Generates the struct of the framework's tensors, the implementation of the adapter's trait for the
    /// batch, and a method of the same name, for which the trait need not be in scope.
    fn expand(self, options: &Options, input: &DeriveInput, fields: &Fields) -> Result<TokenStream> {
        let (sample, vis) = (&input.ident, &input.vis);
        let batch = format_ident!("{sample}Batch");
        let Self { attribute, name, does, .. } = self;
        let (adapter, trait_name, associated, method) =
            (self.adapter(), ident(self.trait_name), ident(name), ident(self.method));
        let converted = format_ident!("{sample}{name}");
        let member: Vec<Member> = members(fields);
        let field_name: Vec<String> = member.iter().map(member_name).collect();
        let each = fields.iter().zip(&member).map(|(field, member)| self.field(&options.core, field, member));
        let each: Vec<Converted> = each.collect::<Result<_>>()?;
        let value = each.iter().map(|converted| &converted.value);
        let mut types = each.iter().map(|converted| converted.ty.clone());
        let declared =
            declare(fields, "The converted batch of", |_| types.next().expect("each field was converted"));
        let doc = format!("A [`{batch}`] converted to {attribute}.");
        let errors = "Returns an error that names the field if a tensor cannot be converted.";
        let semicolon = matches!(fields, Fields::Unnamed(_)).then(|| quote!(;));
        // A struct has tensors of several ranks, so the parameter does not matter.
        let (parameter, argument) =
            if self.is_ranked { (quote!(<const D: usize>), quote!(::<0>)) } else { Default::default() };
        let fixed_rank = self.is_ranked.then(|| quote!(impl #adapter::FixedRank for #batch {}));
        // Tensors of frameworks implement these two, but not, for example, `PartialEq`.
        let derives = options.derives.iter().filter(|path| {
            path.segments.last().is_some_and(|name| name.ident == "Debug" || name.ident == "Clone")
        });

        Ok(quote! {
            #[doc = #doc]
            #(#[derive(#derives)])*
            #vis struct #converted #declared #semicolon

            impl #adapter::#trait_name for #batch {
                type #associated #parameter = #converted;

                fn #method #parameter(
                    &self,
                    device: &#adapter::Device,
                ) -> ::std::result::Result<#converted, #adapter::Error> {
                    ::std::result::Result::Ok(#converted {
                        #(#member: #value.map_err(|error| error.in_field(#field_name))?,)*
                    })
                }
            }

            #fixed_rank

            impl #batch {
                #[doc = #does]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = #errors]
                #vis fn #method(
                    &self,
                    device: &#adapter::Device,
                ) -> ::std::result::Result<#converted, #adapter::Error> {
                    <Self as #adapter::#trait_name>::#method #argument(self, device)
                }
            }
        })
    }

    /// Returns the type and the value of the field of the struct of the framework's tensors.
    fn field(self, core: &Path, field: &Field, member: &Member) -> Result<Converted> {
        let (adapter, trait_name, associated, method) =
            (self.adapter(), ident(self.trait_name), ident(self.name), ident(self.method));
        let sample = &field.ty;
        let batch = quote_spanned!(sample.span()=> <#sample as #core::collate::Sample>::Batch);
        let options = FieldOptions::parse(field)?;
        if let Some(dtype) = options.candle.filter(|_| self.attribute == "candle") {
            let dtype = quote!(#adapter::candle_core::DType::#dtype);
            let to_candle_as = quote_spanned!(sample.span()=> #adapter::ToCandleAs::to_candle_as);
            let value = quote!(#to_candle_as(&self.#member, #dtype, device));
            return Ok(Converted { ty: quote!(#adapter::candle_core::Tensor), value });
        }
        let written = Rank::of_type(sample);
        if self.is_ranked && written == Rank::Tuple {
            let problem = format!(
                "a tuple is not converted to {0}, because its tensors may have several ranks; make it a struct with \
                 `#[derive(Sample)]` and `#[sample({0})]`",
                self.attribute
            );
            return Err(Error::new(sample.span(), problem));
        }
        let rank = options.rank.map_or(written, Rank::Known);
        let (ty, value) = match (self.is_ranked, rank) {
            (_, Rank::Kept) => (
                batch,
                quote!(::std::result::Result::<_, #adapter::Error>::Ok(::std::clone::Clone::clone(&self.#member))),
            ),
            (false, _) => (
                quote_spanned!(sample.span()=> <#batch as #adapter::#trait_name>::#associated),
                quote!(#adapter::#trait_name::#method(&self.#member, device)),
            ),
            (true, Rank::Known(rank)) => (
                quote_spanned!(sample.span()=> <#batch as #adapter::#trait_name>::#associated<#rank>),
                quote!(#adapter::#trait_name::#method::<#rank>(&self.#member, device)),
            ),
            (true, Rank::Tuple | Rank::Unknown) => (
                quote_spanned!(sample.span()=> <#batch as #adapter::#trait_name>::#associated<0>),
                // An error about the missing rank is about this call.
                quote_spanned!(sample.span()=> #adapter::FixedRank::to_burn_fixed_rank(&self.#member, device)),
            ),
        };
        Ok(Converted { ty, value })
    }

    fn adapter(self) -> Path {
        let name = ident(self.crate_name);
        parse_quote!(::#name)
    }
}

fn ident(name: &str) -> Ident {
    Ident::new(name, Span::call_site())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burn_refuses_tuples_in_fields_and_candle_does_not() {
        let expanded = |input: DeriveInput| {
            let expanded = crate::expand(&input, parse_quote!(::loader_core));
            expanded.map(drop).map_err(|error| error.to_string())
        };
        for rank in [quote!(), quote!(#[sample(rank = 2)])] {
            for ty in [quote!((f32, u8)), quote!(Option<(f32, u8)>)] {
                let of = |framework: TokenStream| {
                    parse_quote!(
                        #[sample(#framework)]
                        struct Digit(u8, #rank #ty);
                    )
                };
                let error = expanded(of(quote!(burn))).unwrap_err();
                assert!(
                    error.contains("make it a struct with `#[derive(Sample)]` and `#[sample(burn)]`"),
                    "{error}"
                );
                assert_eq!(expanded(of(quote!(candle))), Ok(()));
            }
        }
    }
}
