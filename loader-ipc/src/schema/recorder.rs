//! A serde serializer that writes nothing and returns the schema of what it is given.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use serde::{
    Serialize, Serializer,
    ser::{self, SerializeSeq},
};

use super::parts::{Elements, Fields, Owner, Part};

/// Maximum number of parts that have a text.
const MAX_TEXTS: usize = 1024;
/// Maximum number of bytes of the text of a tuple or sequence.
const MAX_TEXT: usize = 200;

/// The kinds of values that contain no others. The hash of a kind is its position; no part has the hash 0.
const KINDS: [&str; 19] = [
    "", "bool", "i8", "i16", "i32", "i64", "i128", "u8", "u16", "u32", "u64", "u128", "f32", "f64", "char",
    "string", "bytes", "()", "None",
];

/// The value's `Serialize` implementation has failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RecordError(String);

impl ser::Error for RecordError {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// The serializer. It collects the texts of the parts.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    texts: BTreeMap<u64, Text>,
}

#[derive(Debug)]
pub(super) struct Text {
    /// What a part that contains this one says of it.
    pub(super) short: String,
    /// All of it, for a struct or variant.
    pub(super) declaration: Option<String>,
}

impl Recorder {
    /// Returns the structs and variants, each once, sorted. Returns none of them if some part may have no text: a type
    /// could then be missing, or its text could differ from that of an equal type.
    pub(super) fn into_types(self) -> Vec<String> {
        if self.texts.len() == MAX_TEXTS {
            return Vec::new();
        }
        let types: BTreeSet<_> = self.texts.into_values().filter_map(|text| text.declaration).collect();
        types.into_iter().collect()
    }

    /// Keeps the text of the part with `hash`, unless it is known.
    pub(super) fn keep_text(&mut self, hash: u64, make: impl FnOnce(&Self) -> Text) {
        if self.texts.len() < MAX_TEXTS && !self.texts.contains_key(&hash) {
            let text = make(self);
            self.texts.insert(hash, text);
        }
    }

    pub(super) fn short(&self, hash: u64) -> &str {
        let kind = usize::try_from(hash).ok().and_then(|kind| KINDS.get(kind));
        kind.copied().or_else(|| self.texts.get(&hash).map(|text| &*text.short)).unwrap_or("?")
    }

    pub(super) fn join(&self, hashes: impl IntoIterator<Item = u64>, separator: &str) -> String {
        let mut text = String::new();
        for hash in hashes {
            if text.len() > MAX_TEXT {
                return text + separator + "...";
            }
            if !text.is_empty() {
                text += separator;
            }
            text += self.short(hash);
        }
        text
    }
}

macro_rules! kinds {
    ($($method:ident($type:ty): $kind:literal;)*) => {
        $(
            fn $method(self, _value: $type) -> Result<Part, RecordError> {
                Ok(Part { hash: $kind, is_fixed: true })
            }
        )*
    };
}

impl<'a> Serializer for &'a mut Recorder {
    type Ok = Part;
    type Error = RecordError;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Fields<'a>;
    type SerializeTupleStruct = Fields<'a>;
    type SerializeTupleVariant = Fields<'a>;
    type SerializeMap = Elements<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    kinds! {
        serialize_bool(bool): 1;
        serialize_i8(i8): 2;
        serialize_i16(i16): 3;
        serialize_i32(i32): 4;
        serialize_i64(i64): 5;
        serialize_i128(i128): 6;
        serialize_u8(u8): 7;
        serialize_u16(u16): 8;
        serialize_u32(u32): 9;
        serialize_u64(u64): 10;
        serialize_u128(u128): 11;
        serialize_f32(f32): 12;
        serialize_f64(f64): 13;
        serialize_char(char): 14;
        serialize_str(&str): 15;
        serialize_bytes(&[u8]): 16;
    }

    fn serialize_unit(self) -> Result<Part, RecordError> {
        Ok(Part { hash: 17, is_fixed: true })
    }

    fn serialize_none(self) -> Result<Part, RecordError> {
        Ok(Part { hash: 18, is_fixed: false })
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Part, RecordError> {
        let part = value.serialize(&mut *self)?;
        Ok(part.in_option(self))
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<Part, RecordError> {
        Ok(Fields::new(self, Owner::Struct(name)).end())
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<Part, RecordError> {
        Ok(Fields::new(self, Owner::Variant(name, index, variant)).end())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Part, RecordError> {
        let mut fields = Fields::new(self, Owner::Struct(name));
        fields.add(None, value)?;
        Ok(fields.end())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Part, RecordError> {
        let mut fields = Fields::new(self, Owner::Variant(name, index, variant));
        fields.add(None, value)?;
        Ok(fields.end())
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Elements<'a>, RecordError> {
        Ok(Elements::new(self, false))
    }

    /// Most sequences come here. Unlike [`SerializeSeq`], this method can leave the rest of the elements unvisited.
    fn collect_seq<I>(self, elements: I) -> Result<Part, RecordError>
    where
        I: IntoIterator<Item: Serialize>,
    {
        let mut recorded = Elements::new(self, false);
        for element in elements {
            if recorded.is_enough() {
                break;
            }
            recorded.serialize_element(&element)?;
        }
        Ok(recorded.end())
    }

    fn serialize_tuple(self, _len: usize) -> Result<Fields<'a>, RecordError> {
        Ok(Fields::new(self, Owner::Tuple))
    }

    fn serialize_tuple_struct(self, name: &'static str, _len: usize) -> Result<Fields<'a>, RecordError> {
        Ok(Fields::new(self, Owner::Struct(name)))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Fields<'a>, RecordError> {
        Ok(Fields::new(self, Owner::Variant(name, index, variant)))
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Elements<'a>, RecordError> {
        Ok(Elements::new(self, true))
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Fields<'a>, RecordError> {
        self.serialize_tuple_struct(name, len)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Fields<'a>, RecordError> {
        self.serialize_tuple_variant(name, index, variant, len)
    }

    fn collect_str<T: Display + ?Sized>(self, _value: &T) -> Result<Part, RecordError> {
        self.serialize_str("")
    }

    /// As in the encoding: bincode is not readable by people.
    fn is_human_readable(&self) -> bool {
        false
    }
}
