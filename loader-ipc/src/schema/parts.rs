//! The parts of a schema that contain others: fields, which have an order, and elements, which have none.

use std::collections::BTreeSet;

use serde::{
    Serialize,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    ROWS,
    recorder::{RecordError, Recorder, Text},
};

// What the hash of each kind of part starts from.
const TUPLE: u64 = 1;
const STRUCT: u64 = 2;
const VARIANT: u64 = 3;
const SEQUENCE: u64 = 4;
const MAP: u64 = 5;
const ENTRY: u64 = 6;
const OPTION: u64 = 7;

/// The schema of a part of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) hash: u64,
    /// True if each value of the same type has this schema, because no part is an enum, an option or a sequence.
    pub(super) is_fixed: bool,
}

impl Part {
    /// Returns the schema of an option that contains this part.
    pub(super) fn in_option(self, recorder: &mut Recorder) -> Self {
        let hash = chain(OPTION, &self.hash.to_le_bytes());
        recorder.keep_text(hash, |recorder| Text {
            short: format!("Some({})", recorder.short(self.hash)),
            declaration: None,
        });
        Self { hash, is_fixed: false }
    }
}

/// What fields belong to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    Tuple,
    Struct(&'static str),
    /// A variant: the enum's name, the variant's number and its name.
    Variant(&'static str, u32, &'static str),
}

/// Records a tuple, struct or variant, whose parts have an order.
pub(super) struct Fields<'a> {
    recorder: &'a mut Recorder,
    owner: Owner,
    hash: u64,
    is_fixed: bool,
    /// Name and hash of each field. The fields of tuples have no name.
    fields: Vec<(Option<&'static str>, u64)>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(recorder: &'a mut Recorder, owner: Owner) -> Self {
        let hash = match owner {
            Owner::Tuple => chain(TUPLE, b""),
            Owner::Struct(name) => chain(STRUCT, name.as_bytes()),
            Owner::Variant(name, index, variant) => {
                let name = chain(VARIANT, name.as_bytes());
                chain(chain(name, &index.to_le_bytes()), variant.as_bytes())
            }
        };
        Self { recorder, hash, is_fixed: !matches!(owner, Owner::Variant(..)), owner, fields: Vec::new() }
    }

    pub(super) fn add<T: Serialize + ?Sized>(
        &mut self,
        name: Option<&'static str>,
        value: &T,
    ) -> Result<(), RecordError> {
        let part = value.serialize(&mut *self.recorder)?;
        self.hash = chain(chain(self.hash, name.unwrap_or_default().as_bytes()), &part.hash.to_le_bytes());
        self.is_fixed &= part.is_fixed;
        self.fields.push((name, part.hash));
        Ok(())
    }

    pub(super) fn end(self) -> Part {
        let Self { recorder, owner, hash, is_fixed, fields } = self;
        recorder.keep_text(hash, |recorder| text(recorder, owner, &fields));
        Part { hash, is_fixed }
    }
}

fn text(recorder: &Recorder, owner: Owner, fields: &[(Option<&'static str>, u64)]) -> Text {
    let named: Vec<_> = fields
        .iter()
        .filter_map(|&(name, hash)| Some(format!("{}: {}", name?, recorder.short(hash))))
        .collect();
    let content = match (fields, &named[..]) {
        ([], _) => String::new(),
        (_, []) => format!("({})", recorder.join(fields.iter().map(|&(_, hash)| hash), ", ")),
        _ => format!(" {{ {} }}", named.join(", ")),
    };
    match owner {
        Owner::Tuple => Text { short: content, declaration: None },
        Owner::Struct(name) => Text { short: name.to_owned(), declaration: Some(format!("{name}{content}")) },
        Owner::Variant(name, index, variant) => Text {
            short: format!("{name}::{variant}"),
            declaration: Some(format!("{name}::{variant}{content} (variant {index})")),
        },
    }
}

/// Records a sequence or map. Only the set of the schemas of its elements counts, because the order of a hash map is
/// another one in each process.
pub(super) struct Elements<'a> {
    recorder: &'a mut Recorder,
    is_map: bool,
    /// The key of the entry whose value comes next.
    key: Option<Part>,
    distinct: BTreeSet<u64>,
    last: Option<Part>,
    /// Number of consecutive elements with the same schema.
    equal: usize,
}

impl<'a> Elements<'a> {
    pub(super) fn new(recorder: &'a mut Recorder, is_map: bool) -> Self {
        Self { recorder, is_map, key: None, distinct: BTreeSet::new(), last: None, equal: 0 }
    }

    fn add(&mut self, part: Part) {
        if self.last.is_some_and(|last| last.hash == part.hash) {
            self.equal += 1;
            return;
        }
        self.distinct.insert(part.hash);
        (self.last, self.equal) = (Some(part), 1);
    }

    /// True if the other elements of a sequence have the same schema as those before, which was fixed. This is not
    /// certain, because a `Serialize` implementation written by hand can write other kinds for each value. So no entry
    /// of a map is left out: the order of a hash map would decide which kinds are seen.
    pub(super) fn is_enough(&self) -> bool {
        self.equal >= ROWS && self.distinct.len() == 1 && self.last.is_some_and(|last| last.is_fixed)
    }

    pub(super) fn end(self) -> Part {
        let Self { recorder, is_map, distinct, .. } = self;
        let start = chain(if is_map { MAP } else { SEQUENCE }, b"");
        let hash = distinct.iter().fold(start, |hash, element| chain(hash, &element.to_le_bytes()));
        recorder.keep_text(hash, |recorder| {
            let elements = recorder.join(distinct.iter().copied(), " | ");
            let short = if is_map { format!("{{{elements}}}") } else { format!("[{elements}]") };
            Text { short, declaration: None }
        });
        Part { hash, is_fixed: false }
    }
}

impl SerializeSeq for Elements<'_> {
    type Ok = Part;
    type Error = RecordError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RecordError> {
        if !self.is_enough() {
            let part = value.serialize(&mut *self.recorder)?;
            self.add(part);
        }
        Ok(())
    }

    fn end(self) -> Result<Part, RecordError> {
        Ok(Elements::end(self))
    }
}

impl SerializeMap for Elements<'_> {
    type Ok = Part;
    type Error = RecordError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), RecordError> {
        self.key = Some(key.serialize(&mut *self.recorder)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RecordError> {
        let Some(key) = self.key.take() else { return Ok(()) };
        let value = value.serialize(&mut *self.recorder)?;
        let hash = chain(chain(ENTRY, &key.hash.to_le_bytes()), &value.hash.to_le_bytes());
        self.recorder.keep_text(hash, |recorder| Text {
            short: recorder.join([key.hash, value.hash], ": "),
            declaration: None,
        });
        self.add(Part { hash, is_fixed: key.is_fixed && value.is_fixed });
        Ok(())
    }

    fn end(self) -> Result<Part, RecordError> {
        Ok(Elements::end(self))
    }
}

macro_rules! fields {
    ($($kind:ident: $method:ident($($name:ident: $type:ty)?);)*) => {
        $(
            impl $kind for Fields<'_> {
                type Ok = Part;
                type Error = RecordError;

                fn $method<T: Serialize + ?Sized>(&mut self, $($name: $type,)? value: &T) -> Result<(), RecordError> {
                    self.add(None$(.or(Some($name)))?, value)
                }

                fn end(self) -> Result<Part, RecordError> {
                    Ok(Fields::end(self))
                }
            }
        )*
    };
}

fields! {
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeStruct: serialize_field(name: &'static str);
    SerializeStructVariant: serialize_field(name: &'static str);
}

/// Adds `bytes` to a hash.
fn chain(hash: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, hash)
}
