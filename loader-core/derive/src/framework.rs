//! `#[sample(candle)]` and the like: a struct of a framework's tensors for a batch.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{DeriveInput, Fields, Ident, Member, Path, parse_quote, spanned::Spanned};

use crate::{declare, member_name, members};

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
}

/// All frameworks.
pub(crate) const FRAMEWORKS: &[Framework] = &[Framework {
    attribute: "candle",
    name: "Candle",
    crate_name: "loader_candle",
    trait_name: "ToCandle",
    method: "to_candle",
}];

/// Generates for each of `frameworks` a struct of its tensors for the batch of the struct `input`.
pub(crate) fn expand(
    frameworks: &[Framework],
    input: &DeriveInput,
    fields: &Fields,
    core: &Path,
) -> TokenStream {
    frameworks.iter().map(|framework| framework.expand(input, fields, core)).collect()
}

impl Framework {
    /// Generates the struct of the framework's tensors, the implementation of the adapter's trait for the
    /// batch, and a method of the same name, for which the trait need not be in scope.
    fn expand(self, input: &DeriveInput, fields: &Fields, core: &Path) -> TokenStream {
        let (sample, vis) = (&input.ident, &input.vis);
        let batch = format_ident!("{sample}Batch");
        let Self { attribute, name, method, .. } = self;
        let ident = |name| Ident::new(name, Span::call_site());
        let (adapter, trait_name, name, method) =
            (ident(self.crate_name), ident(self.trait_name), ident(name), ident(method));
        let adapter: Path = parse_quote!(::#adapter);
        let converted = format_ident!("{sample}{name}");
        let member: Vec<Member> = members(fields);
        let field_name: Vec<String> = member.iter().map(member_name).collect();
        let converted_fields = declare(
            fields,
            &format!("The tensors of {attribute} of"),
            |ty| quote_spanned!(ty.span()=> <<#ty as #core::collate::Sample>::Batch as #adapter::#trait_name>::#name),
        );
        let doc = format!("A [`{batch}`] with tensors of {attribute}.");
        let method_doc = format!("Copies the tensors of the batch to `device`, as tensors of {attribute}.");
        let errors = "Returns an error that names the field if a tensor cannot be converted.";
        let semicolon = matches!(fields, Fields::Unnamed(_)).then(|| quote!(;));

        quote! {
            #[doc = #doc]
            #[derive(Debug, Clone)]
            #vis struct #converted #converted_fields #semicolon

            impl #adapter::#trait_name for #batch {
                type #name = #converted;

                fn #method(
                    &self,
                    device: &#adapter::Device,
                ) -> ::std::result::Result<#converted, #adapter::Error> {
                    ::std::result::Result::Ok(#converted {
                        #(
                            #member: #adapter::#trait_name::#method(&self.#member, device)
                                .map_err(|error| error.in_field(#field_name))?,
                        )*
                    })
                }
            }

            impl #batch {
                #[doc = #method_doc]
                #[doc = ""]
                #[doc = "# Errors"]
                #[doc = #errors]
                #vis fn #method(
                    &self,
                    device: &#adapter::Device,
                ) -> ::std::result::Result<#converted, #adapter::Error> {
                    <Self as #adapter::#trait_name>::#method(self, device)
                }
            }
        }
    }
}
