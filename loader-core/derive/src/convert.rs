//! `#[derive(Convert)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{DeriveInput, Fields, Member, Result, spanned::Spanned};

use crate::{declare, extra_derives, fields_of, member_name, members};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = fields_of(input, "Convert")?;
    let derives = extra_derives(&input.attrs)?;
    let (sample, vis) = (&input.ident, &input.vis);
    let item = format_ident!("{sample}Item");
    let core = quote!(::loader_core);
    let member: Vec<Member> = members(fields);
    let name: Vec<String> = member.iter().map(member_name).collect();

    let item_fields = declare(
        fields,
        "The item of",
        |ty| quote_spanned!(ty.span()=> <#ty as #core::collate::Convert>::Item),
    );
    let item_doc = format!("A converted [`{sample}`]: each field is the item of that field.");
    let semicolon = matches!(fields, Fields::Unnamed(_)).then(|| quote!(;));
    let serde_path = "::loader_core::__private::serde";

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
