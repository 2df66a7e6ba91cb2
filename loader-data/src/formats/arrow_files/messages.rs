//! The messages of a file: its schema, and where the buffers of its record batches are.

use std::ops::Range;

use arrow_ipc::{
    CompressionType, Message, MessageHeader, RecordBatch, convert::try_fb_to_schema, root_as_footer,
    root_as_message,
};
use arrow_schema::{DataType, Schema, UnionMode};

use super::{body::Codec, malformed};
use crate::{
    error::{DataProblem, Result},
    source::Blob,
};

const FILE_MAGIC: &[u8; 6] = b"ARROW1";
const FEATHER_1_MAGIC: &[u8; 4] = b"FEA1";
/// Begins each message; its length follows, in 4 bytes.
const CONTINUATION: &[u8; 4] = &[0xff; 4];
/// Length of what is before a message.
const PREFIX: u64 = 8;
/// Length of the footer (4 bytes) and the magic number at the end of a file.
const TRAILER: u64 = 10;
/// Number of bytes that are read at once of a stream. The message of most record batches fits.
const HEAD: u64 = 4 << 10;
/// Number of messages of a file that are read at once.
const MESSAGES: usize = 256;
/// Maximum number of bytes between two messages that are fetched with one request. The bodies between the messages are
/// the data of the file, so a larger gap would fetch most of the file.
const GAP: u64 = 32 << 10;

/// What the messages of a file say.
pub(super) struct Messages {
    pub(super) schema: Schema,
    pub(super) batches: Vec<Described>,
    pub(super) dictionaries: Vec<Dictionary>,
}

/// The buffers of a record batch or of a dictionary.
#[derive(Debug, PartialEq)]
pub(super) struct Described {
    pub(super) rows: u64,
    pub(super) codec: Codec,
    /// For each array, twice its length, plus 1 if it has nulls.
    pub(super) nodes: Vec<u64>,
    /// For each buffer, its offset in the file and its length.
    pub(super) buffers: Vec<[u64; 2]>,
    /// For each array of views, its number of data buffers.
    pub(super) views: Vec<u64>,
}

/// The values of dictionary-encoded columns.
pub(super) struct Dictionary {
    pub(super) id: i64,
    /// True if the values follow those of the dictionary before; otherwise they replace them.
    pub(super) is_delta: bool,
    /// Number of record batches before it.
    pub(super) batches_before: usize,
    pub(super) values: Described,
}

/// Reads all messages of a file in either format.
///
/// # Errors
/// Returns an error if the file cannot be read, is truncated, or is not valid Arrow IPC.
pub(super) fn read_messages(blob: &Blob) -> Result<Messages> {
    let start = blob.read(0..blob.len().min(PREFIX))?;
    let problem = if start.starts_with(FILE_MAGIC) {
        return read_file(blob);
    } else if start.starts_with(CONTINUATION) {
        return read_stream(blob);
    } else if start.is_empty() {
        malformed("the file is empty")
    } else if FILE_MAGIC.starts_with(&start) || CONTINUATION.starts_with(&start) {
        DataProblem::Truncated
    } else if start.starts_with(FEATHER_1_MAGIC) {
        let reason = "it is Feather version 1; write it again with version 2";
        DataProblem::Unsupported(reason.to_owned())
    } else {
        malformed("it begins neither as a file nor as a stream of Arrow")
    };
    Err(blob.error(0, problem))
}

/// Reads the messages that the footer of a file lists.
fn read_file(blob: &Blob) -> Result<Messages> {
    // A file that begins as one of Arrow and does not end so has lost its end.
    let truncated = || blob.error(blob.len(), DataProblem::Truncated);
    let end = blob.len().checked_sub(TRAILER).ok_or_else(truncated)?;
    let trailer = blob.read(end..blob.len())?;
    let (size, magic) = trailer.split_at(4);
    if magic != FILE_MAGIC {
        return Err(truncated());
    }
    let size = i32::from_le_bytes(size.try_into().expect("it has 4 bytes"));
    let invalid = |reason: String| blob.error(end, malformed(format!("its footer {reason}")));
    let start = u64::try_from(size).ok().and_then(|size| end.checked_sub(size));
    let start = start.filter(|&start| start >= PREFIX);
    let start = start.ok_or_else(|| invalid(format!("has {size} bytes, which do not fit into the file")))?;
    let footer = blob.read(start..end)?;
    let footer = root_as_footer(&footer).map_err(|error| invalid(format!("is invalid: {error}")))?;
    let schema = footer.schema().ok_or_else(|| invalid("has no schema".to_owned()))?;
    let mut messages = Messages::new(convert_schema(schema).map_err(|problem| blob.error(end, problem))?);
    let blocks: Vec<_> =
        footer.dictionaries().iter().flatten().chain(footer.recordBatches().iter().flatten()).collect();
    let mut left = start;
    let mut ranges = Vec::with_capacity(blocks.len());
    for block in blocks {
        let (metadata, body) = (u64::try_from(block.metaDataLength()), u64::try_from(block.bodyLength()));
        let range = u64::try_from(block.offset()).ok().zip(metadata.ok().zip(body.ok()));
        let range = range.and_then(|(offset, (metadata, body))| {
            let body_start = offset.checked_add(metadata)?;
            // A message may lie anywhere, but together they are not larger than the file.
            left = left.checked_sub(metadata.checked_add(body)?)?;
            (body_start.checked_add(body)? <= start && metadata >= PREFIX).then_some(offset..body_start)
        });
        ranges.push(
            range.ok_or_else(|| invalid("lists a record batch that is not inside the file".to_owned()))?,
        );
    }
    for ranges in ranges.chunks(MESSAGES) {
        for (bytes, range) in blob.read_ranges_within(ranges, GAP)?.iter().zip(ranges) {
            // Old writers leave out the first four bytes.
            let prefix = if bytes.starts_with(CONTINUATION) { PREFIX } else { PREFIX / 2 };
            messages.add(blob, &bytes[prefix as usize..], range)?;
        }
    }
    Ok(messages)
}

/// Reads the messages of a stream, one after the other.
fn read_stream(blob: &Blob) -> Result<Messages> {
    let mut messages: Option<Messages> = None;
    let mut at = 0;
    loop {
        let head = blob.read(at..blob.len().min(at.saturating_add(HEAD)))?;
        let invalid = |reason: &str| blob.error(at, malformed(reason));
        let Some((prefix, rest)) = head.split_at_checked(PREFIX as usize) else {
            // Also a stream without a message that ends it: its writer was not closed.
            return Err(blob.error(at, DataProblem::Truncated));
        };
        let (continuation, size) = prefix.split_at(4);
        let size = u32::from_le_bytes(size.try_into().expect("it has 4 bytes"));
        if continuation != CONTINUATION || size > i32::MAX as u32 {
            return Err(invalid("there is no message where one must be"));
        }
        let start = at + PREFIX;
        if size == 0 {
            return match messages {
                Some(messages) if start == blob.len() => Ok(messages),
                Some(_) => Err(invalid("there are bytes after the end of the stream")),
                None => Err(invalid("the stream has no schema")),
            };
        }
        let body = start + u64::from(size);
        let read: Vec<u8>;
        let message = match rest.get(..size as usize) {
            Some(message) => message,
            None => {
                read = blob.read(start..body)?;
                &read
            }
        };
        let parsed = parse(blob, message, at)?;
        let len = u64::try_from(parsed.bodyLength()).ok().and_then(|len| body.checked_add(len));
        let end =
            len.filter(|&end| end <= blob.len()).ok_or_else(|| blob.error(at, DataProblem::Truncated))?;
        match &mut messages {
            Some(messages) => messages.add(blob, message, &(at..body))?,
            None => {
                let schema = parsed.header_as_schema().ok_or_else(|| invalid("the stream has no schema"))?;
                let schema = convert_schema(schema).map_err(|problem| blob.error(at, problem))?;
                messages = Some(Messages::new(schema));
            }
        }
        at = end;
    }
}

fn parse<'a>(blob: &Blob, message: &'a [u8], at: u64) -> Result<Message<'a>> {
    root_as_message(message)
        .map_err(|error| blob.error(at, malformed(format!("a message is invalid: {error}"))))
}

fn convert_schema(schema: arrow_ipc::Schema<'_>) -> Result<Schema, DataProblem> {
    if !schema.endianness().equals_to_target_endianness() {
        let reason = "it was written on a machine with another byte order; write it again on this one";
        return Err(DataProblem::Unsupported(reason.to_owned()));
    }
    try_fb_to_schema(schema).map_err(|error| malformed(format!("its schema is invalid: {error}")))
}

impl Messages {
    fn new(schema: Schema) -> Self {
        Self { schema, batches: Vec::new(), dictionaries: Vec::new() }
    }

    /// Adds a message. With what is before it, it lies at `range` of the file, and its body follows.
    fn add(&mut self, blob: &Blob, message: &[u8], range: &Range<u64>) -> Result<()> {
        let parsed = parse(blob, message, range.start)?;
        let invalid = |reason: String| blob.error(range.start, malformed(reason));
        let end = u64::try_from(parsed.bodyLength()).ok().and_then(|len| range.end.checked_add(len));
        let body = range.end
            ..end
                .filter(|&end| end <= blob.len())
                .ok_or_else(|| invalid("a body is not inside the file".to_owned()))?;
        match parsed.header_type() {
            MessageHeader::RecordBatch => {
                let batch = parsed.header_as_record_batch().ok_or("a message has no record batch".to_owned());
                self.batches.push(batch.and_then(|batch| Described::new(batch, body)).map_err(invalid)?);
            }
            MessageHeader::DictionaryBatch => {
                let batch =
                    parsed.header_as_dictionary_batch().ok_or("a message has no dictionary".to_owned());
                let batch = batch.map_err(invalid)?;
                let values = batch.data().ok_or("a dictionary has no values".to_owned());
                let values = values.and_then(|values| Described::new(values, body)).map_err(invalid)?;
                let (id, is_delta, batches_before) = (batch.id(), batch.isDelta(), self.batches.len());
                self.dictionaries.push(Dictionary { id, is_delta, batches_before, values });
            }
            _ => return Err(invalid("a message is neither a record batch nor a dictionary".to_owned())),
        }
        Ok(())
    }
}

impl Described {
    fn new(batch: RecordBatch<'_>, body: Range<u64>) -> Result<Self, String> {
        let number = |number: i64| u64::try_from(number).map_err(|_| "a length is negative".to_owned());
        let codec = match batch.compression().map(|compression| compression.codec()) {
            None => Codec::None,
            Some(CompressionType::LZ4_FRAME) => Codec::Lz4,
            Some(CompressionType::ZSTD) => Codec::Zstd,
            Some(_) => return Err("a record batch is compressed in an unknown way".to_owned()),
        };
        let nodes = batch.nodes().into_iter().flatten();
        let nodes = nodes.map(|node| Ok(number(node.length())? * 2 + u64::from(node.null_count() != 0)));
        let buffers = batch.buffers().into_iter().flatten().map(|buffer| {
            let (offset, len) = (number(buffer.offset())?, number(buffer.length())?);
            let end = body.start.checked_add(offset).and_then(|start| start.checked_add(len));
            if end.is_some_and(|end| end <= body.end) {
                Ok([body.start + offset, len])
            } else {
                Err("a buffer is not inside its record batch".to_owned())
            }
        });
        Ok(Self {
            rows: number(batch.length())?,
            codec,
            nodes: nodes.collect::<Result<_, String>>()?,
            buffers: buffers.collect::<Result<_, String>>()?,
            views: batch
                .variadicBufferCounts()
                .into_iter()
                .flatten()
                .map(number)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the part of a column, which are the columns of `types` in this order.
    ///
    /// # Errors
    /// Returns the reason if the batch does not have the columns.
    pub(super) fn columns<'a>(&self, types: impl Iterator<Item = &'a DataType>) -> Result<Vec<Self>, String> {
        let (mut nodes, mut buffers, mut views) = (&self.nodes[..], &self.buffers[..], &self.views[..]);
        let mut columns = Vec::new();
        for data_type in types {
            let extent = Extent::of(data_type);
            let missing = || "a record batch does not fit the schema".to_owned();
            let column_nodes = take(&mut nodes, extent.nodes as u64).ok_or_else(missing)?;
            let column_views = take(&mut views, extent.views as u64).ok_or_else(missing)?;
            let data = column_views.iter().copied().fold(extent.buffers as u64, u64::saturating_add);
            let column_buffers = take(&mut buffers, data).ok_or_else(missing)?;
            if column_nodes[0] / 2 != self.rows {
                return Err(format!(
                    "a column has {} rows where its batch has {}",
                    column_nodes[0] / 2,
                    self.rows
                ));
            }
            columns.push(Self {
                rows: self.rows,
                codec: self.codec,
                nodes: column_nodes.to_vec(),
                buffers: column_buffers.to_vec(),
                views: column_views.to_vec(),
            });
        }
        if nodes.is_empty() && buffers.is_empty() && views.is_empty() {
            Ok(columns)
        } else {
            Err("a record batch has more columns than the schema".to_owned())
        }
    }
}

/// Removes the first `count` items of `list` and returns them; `None` if there are fewer.
fn take<'a, T>(list: &mut &'a [T], count: u64) -> Option<&'a [T]> {
    let (first, rest) = list.split_at_checked(usize::try_from(count).ok()?)?;
    *list = rest;
    Some(first)
}

/// What a column has in each record batch.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Extent {
    /// Number of arrays: the column itself, and those inside it.
    pub(super) nodes: usize,
    /// Number of buffers, without the data buffers of views.
    buffers: usize,
    /// Number of arrays of views.
    views: usize,
}

impl Extent {
    pub(super) fn of(data_type: &DataType) -> Self {
        let (buffers, views) = match data_type {
            DataType::Null | DataType::RunEndEncoded(..) => (0, 0),
            DataType::FixedSizeList(..) | DataType::Struct(_) | DataType::Union(_, UnionMode::Sparse) => {
                (1, 0)
            }
            DataType::Utf8View | DataType::BinaryView => (2, 1),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => (3, 0),
            DataType::ListView(_) | DataType::LargeListView(_) => (3, 0),
            _ => (2, 0),
        };
        let mut extent = Self { nodes: 1, buffers, views };
        let mut add = |data_type: &DataType| {
            let inner = Self::of(data_type);
            extent.nodes += inner.nodes;
            extent.buffers += inner.buffers;
            extent.views += inner.views;
        };
        match data_type {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _)
            | DataType::Map(item, _) => add(item.data_type()),
            DataType::Struct(fields) => fields.iter().for_each(|field| add(field.data_type())),
            DataType::Union(fields, _) => fields.iter().for_each(|(_, field)| add(field.data_type())),
            DataType::RunEndEncoded(ends, values) => {
                add(ends.data_type());
                add(values.data_type());
            }
            _ => {}
        }
        extent
    }
}
