//! `#[derive(Sample)]` and `#[derive(Convert)]`: collate or convert a struct field by field.
//!
//! The generated code names the crate that the program depends on. Each derive is here twice: `loader-core`
//! exports the one that writes `::loader_core`, and `loader` exports the one that writes `::loader`, under
//! the same name. `#[sample(crate = "...")]` names any other path, for a renamed dependency or for a library
//! that exports the loader. Alternative considered: the crate `proc-macro-crate`, which looks the name up in
//! the program's manifest. Rejected because it adds a TOML parser to the build of every program.

mod convert;
mod field;
mod framework;
mod rank;

use field::FieldOptions;
use framework::{FRAMEWORKS, Framework};
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Index, LitStr, Member, Path, Result, Token,
    ext::IdentExt, parse::Parser, parse_macro_input, parse_quote, spanned::Spanned,
};

/// Derives `Sample` (default collation) for a struct whose fields all implement it.
///
/// For `struct Digit { pixels: [f32; 64], label: u8 }` it generates `struct DigitBatch { pixels: Tensor<f32>,
/// label: Tensor<u8> }` with the same visibilities. `DigitBatch` implements `Serialize` and `Deserialize`, so
/// it can be the batch of a loader.
///
/// - `#[sample(derive(Debug, Clone))]` adds derives to `DigitBatch`, and to the structs below if it is `Debug` or
///   `Clone`.
/// - `#[sample(crate = "records")]` says that the program depends on this crate under the name `records`.
/// - `#[sample(burn)]` also generates `struct DigitBurn` with tensors of burn, and the method
///   `DigitBatch::to_burn`. The program depends on `loader-burn`, which has an example. A field whose type does
///   not tell the rank, such as a `Tensor<f32>`, needs `#[sample(rank = N)]`, where `N` counts the dimension of
///   the batch too.
/// - `#[sample(candle)]` also generates `struct DigitCandle` with tensors of candle, and the method
///   `DigitBatch::to_candle`. The program depends on `loader-candle`, which has an example. candle has no `bool`,
///   `i8`, `u16`, `u64` and `usize`: `#[sample(candle = "i64")]` on such a field converts its tensor.
/// - Fields that are listed unchanged, such as `String` and `Keep<T>`, are cloned into these structs, so `T` must
///   implement `Clone`.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// #[derive(Sample)]
/// #[sample(derive(Debug))]
/// struct Digit {
///     pixels: [f32; 64],
///     label: u8,
/// }
///
/// fn first_label(batch: &DigitBatch) -> u8 {
///     batch.label.as_slice()[0]
/// }
/// ```
///
/// `Sample` cannot be derived for an enum:
/// ```compile_fail
/// #[derive(loader_core::Sample)]
/// enum Either { A(u8), B(f32) }
/// ```
#[proc_macro_derive(Sample, attributes(sample))]
pub fn derive_sample(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input, parse_quote!(::loader_core)).unwrap_or_else(Error::into_compile_error).into()
}

#[allow(missing_docs, reason = "`loader` exports it as `Sample` and documents it there")]
#[proc_macro_derive(LoaderSample, attributes(sample))]
pub fn derive_loader_sample(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input, parse_quote!(::loader)).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `Convert` (default conversion for a loader without batches) for a struct whose fields all
/// implement it.
///
/// For `struct Digit { pixels: [f32; 64], label: u8 }` it generates `struct DigitItem { pixels: Tensor<f32>,
/// label: u8 }` with the same visibilities. `DigitItem` implements `Serialize` and `Deserialize`, so it can
/// be the item of a loader.
///
/// - `#[sample(derive(Debug, Clone))]` adds derives to `DigitItem`.
/// - `#[sample(crate = "records")]` says that the program depends on this crate under the name `records`.
///
/// # Examples
/// ```
/// use loader_core::{Convert, Tensor};
///
/// #[derive(Convert)]
/// struct Digit {
///     pixels: [f32; 64],
///     label: u8,
/// }
///
/// let item: DigitItem = Digit { pixels: [0.5; 64], label: 3 }.convert()?;
/// assert_eq!((item.pixels.shape(), item.label), ([64].as_slice(), 3));
/// # Ok::<(), loader_core::collate::CollateError>(())
/// ```
#[proc_macro_derive(Convert, attributes(sample))]
pub fn derive_convert(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    convert::expand(&input, parse_quote!(::loader_core)).unwrap_or_else(Error::into_compile_error).into()
}

#[allow(missing_docs, reason = "`loader` exports it as `Convert` and documents it there")]
#[proc_macro_derive(LoaderConvert, attributes(sample))]
pub fn derive_loader_convert(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    convert::expand(&input, parse_quote!(::loader)).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `Sample`. The generated code uses the crate at the path `default_core` unless the attribute
/// names another.
fn expand(input: &DeriveInput, default_core: Path) -> Result<TokenStream> {
    let fields = fields_of(input, "Sample")?;
    let options = Options::parse(&input.attrs, default_core)?;
    let Options { core, derives, .. } = &options;
    let (sample, vis) = (&input.ident, &input.vis);
    let (batch, stack) = (format_ident!("{sample}Batch"), format_ident!("{sample}Stack"));
    let member: Vec<Member> = members(fields);
    let name: Vec<String> = member.iter().map(member_name).collect();
    let ty: Vec<_> = fields.iter().map(|field| &field.ty).collect();

    let part = |ty: &syn::Type, part: &str| {
        let part = format_ident!("{part}");
        quote_spanned!(ty.span()=> <#ty as #core::collate::Sample>::#part)
    };
    let batch_fields = declare(fields, "The batch of", |ty| part(ty, "Batch"));
    let stack_fields = declare(fields, "The batch of", |ty| part(ty, "Stack"));
    let batch_doc = format!("A batch of [`{sample}`]s: each field is the batch of that field.");
    let semicolon = matches!(fields, Fields::Unnamed(_)).then(|| quote!(;));
    let serde_path = serde_path(core);
    let converted = framework::expand(&options, input, fields)?;

    Ok(quote! {
        #converted

        #[doc = #batch_doc]
        #[derive(#core::__private::serde::Serialize, #core::__private::serde::Deserialize, #(#derives),*)]
        #[serde(crate = #serde_path)]
        #vis struct #batch #batch_fields #semicolon

        #[doc(hidden)]
        #vis struct #stack #stack_fields #semicolon

        impl #core::collate::Stack for #stack {
            type Sample = #sample;
            type Batch = #batch;

            fn push(&mut self, sample: #sample) -> ::std::result::Result<(), #core::collate::CollateError> {
                #(
                    #core::collate::Stack::push(&mut self.#member, sample.#member)
                        .map_err(|error| error.in_field(#name))?;
                )*
                ::std::result::Result::Ok(())
            }

            fn makes_tensors(&self) -> bool {
                #(#core::collate::Stack::makes_tensors(&self.#member))||*
            }

            fn finish(self) -> ::std::result::Result<#batch, #core::collate::CollateError> {
                ::std::result::Result::Ok(#batch {
                    #(
                        #member: #core::collate::Stack::finish(self.#member)
                            .map_err(|error| error.in_field(#name))?,
                    )*
                })
            }
        }

        impl #core::collate::Sample for #sample {
            type Batch = #batch;
            type Stack = #stack;

            fn stack(samples: usize) -> #stack {
                #stack { #(#member: <#ty as #core::collate::Sample>::stack(samples),)* }
            }

            fn hash_content(&self, hash: &mut #core::collate::ContentHash) {
                #(#core::collate::Sample::hash_content(&self.#member, hash);)*
            }
        }
    })
}

/// Returns the fields of the struct for which `trait_name` is derived, or the compile error if it cannot be
/// derived.
fn fields_of<'a>(input: &'a DeriveInput, trait_name: &str) -> Result<&'a Fields> {
    let Data::Struct(data) = &input.data else {
        let problem = format!(
            "`{trait_name}` can be derived for a struct only; for an enum or union give the loader a function with \
             `.collate(...)` or `.convert(...)`, wrap it in `Keep` to keep it as it is, or implement `{trait_name}` by hand"
        );
        return Err(Error::new(input.span(), problem));
    };
    if !input.generics.params.is_empty() {
        let problem = format!("`{trait_name}` cannot be derived for a generic struct; implement it by hand");
        return Err(Error::new(input.generics.span(), problem));
    }
    if data.fields.is_empty() {
        let problem = format!("`{trait_name}` cannot be derived for a struct without fields; add a field");
        return Err(Error::new(input.span(), problem));
    }
    for field in &data.fields {
        FieldOptions::parse(field)?; // also of derives and frameworks that do not use them
    }
    Ok(&data.fields)
}

/// What `#[sample(...)]` says.
struct Options {
    /// Path of the crate that the generated code uses.
    core: Path,
    /// Derives for the generated struct.
    derives: Vec<Path>,
    /// The frameworks for which a struct of tensors is generated.
    frameworks: Vec<Framework>,
}

impl Options {
    fn parse(attributes: &[Attribute], default_core: Path) -> Result<Self> {
        let mut options = Self { core: default_core, derives: Vec::new(), frameworks: Vec::new() };
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("sample")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("crate") {
                    let path: LitStr = meta.value()?.parse()?;
                    // `LitStr::parse_with` is not used: with its spans, the compiler lints the path as if the
                    // user had written it.
                    options.core = Path::parse_mod_style
                        .parse_str(&path.value())
                        .map_err(|error| Error::new(path.span(), error))?;
                } else if meta.path.is_ident("derive") {
                    let content;
                    syn::parenthesized!(content in meta.input);
                    options.derives.extend(content.parse_terminated(Path::parse_mod_style, Token![,])?);
                } else if let Some(framework) =
                    FRAMEWORKS.iter().find(|framework| meta.path.is_ident(framework.attribute))
                {
                    options.frameworks.push(*framework);
                } else {
                    let names: Vec<_> =
                        FRAMEWORKS.iter().map(|framework| format!("`{}`", framework.attribute)).collect();
                    return Err(meta.error(format_args!(
                        "unknown attribute; expected `derive(...)`, `crate = \"...\"` or a framework: {}",
                        names.join(", ")
                    )));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

/// Returns the path of serde for the attribute `#[serde(crate = "...")]`, which takes it as a text.
fn serde_path(core: &Path) -> String {
    quote!(#core::__private::serde).to_string().replace(' ', "")
}

fn members(fields: &Fields) -> Vec<Member> {
    let member = |(position, field): (usize, &Field)| match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index::from(position)),
    };
    fields.iter().enumerate().map(member).collect()
}

fn member_name(member: &Member) -> String {
    match member {
        Member::Named(name) => name.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// Declares the fields of the struct with other types, each with the rustdoc `doc` followed by the name of
/// the field.
fn declare(fields: &Fields, doc: &str, mut ty: impl FnMut(&syn::Type) -> TokenStream) -> TokenStream {
    let declared = fields.iter().map(|field| {
        let (vis, ty) = (&field.vis, ty(&field.ty));
        match &field.ident {
            Some(name) => {
                let doc = format!("{doc} `{}`.", name.unraw());
                quote!(#[doc = #doc] #vis #name: #ty)
            }
            None => quote!(#vis #ty),
        }
    });
    match fields {
        Fields::Named(_) => quote!({ #(#declared),* }),
        _ => quote!(( #(#declared),* )),
    }
}
