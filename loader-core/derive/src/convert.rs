//! `#[derive(Convert)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{DeriveInput, Fields, Member, Path, Result, spanned::Spanned};

use crate::{Options, declare, fields_of, member_name, members, serde_path};

/// Implements `Convert`. The generated code uses the crate at the path `default_core` unless the attribute
/// names another.
pub(crate) fn expand(input: &DeriveInput, default_core: Path) -> Result<TokenStream> {
    let fields = fields_of(input, "Convert")?;
    let Options { core, derives, .. } = Options::parse(&input.attrs, default_core)?;
    let (sample, vis) = (&input.ident, &input.vis);
    let item = format_ident!("{sample}Item");
    let member: Vec<Member> = members(fields);
    let name: Vec<String> = member.iter().map(member_name).collect();

    let item_fields = declare(
        fields,
        "The item of",
        |ty| quote_spanned!(ty.span()=> <#ty as #core::collate::Convert>::Item),
    );
    let item_doc = format!("A converted [`{sample}`]: each field is the item of that field.");
    let semicolon = matches!(fields, Fields::Unnamed(_)).then(|| quote!(;));
    let serde_path = serde_path(&core);

    Ok(quote! {
        #[doc = #item_doc]
        #[derive(#core::__private::serde::Serialize, #core::__private::serde::Deserialize, #(#derives),*)]
        #[serde(crate = #serde_path)]
        #vis struct #item #item_fields #semicolon

        impl #core::collate::Convert for #sample {
            type Item = #item;

            fn convert(self) -> ::std::result::Result<#item, #core::collate::CollateError> {
                ::std::result::Result::Ok(#item {
                    #(
                        #member: #core::collate::Convert::convert(self.#member)
                            .map_err(|error| error.in_field(#name))?,
                    )*
                })
            }
        }
    })
}
