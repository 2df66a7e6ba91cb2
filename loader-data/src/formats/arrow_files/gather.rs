//! Arrays of some rows of a record batch. Their types are those of the module `plain`.

use std::{iter, ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, NullArray, make_array};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, Buffer as Values, MutableBuffer, NullBuffer};
use arrow_data::ArrayDataBuilder;
use arrow_schema::{ArrowError, DataType, Field};
use arrow_select::take::{TakeOptions, take};

use super::{
    body::{Body, Buffer},
    index::{IndexEntry, dictionary_id},
    items::{Items, total},
    malformed,
    messages::Extent,
    plain::{builder, has_bytes, is_large, plain_field, text_type, widened, width},
    table::Table,
};
use crate::error::{DataError, Result};

/// Maximum number of items that need no bytes, such as nulls, in the lists of rows that are read together.
const MAX_EMPTY: u64 = 1 << 20;

/// Number of bytes of a view; a text of at most [`INLINE`] bytes is inside it.
const VIEW: usize = 16;
const INLINE: usize = 12;

/// Reads rows of the columns of a record batch, column after column.
pub(super) struct Gather<'a> {
    table: &'a Table,
    entry: &'a IndexEntry,
    body: &'a Body,
    /// The nodes that follow: those of a column, each before the nodes of its parts.
    nodes: &'a [u64],
    /// The numbers of data buffers of the views that follow.
    views: &'a [u64],
    buffers: &'a [Buffer],
}

impl<'a> Gather<'a> {
    /// Prepares reading `entry`, whose columns have the given types.
    pub(super) fn new<'t>(
        table: &'a Table,
        entry: &'a IndexEntry,
        body: &'a Body,
        types: impl Iterator<Item = &'t DataType>,
    ) -> Self {
        let (nodes, buffers) = table.index.parts(entry);
        let count = types.map(|data_type| Extent::of(data_type).nodes).sum();
        let (nodes, views) = nodes.split_at_checked(count).unwrap_or((nodes, &[]));
        Self { table, entry, body, nodes, views, buffers }
    }

    /// Reads `rows` of the next column, which is `field`.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be read or are damaged.
    pub(super) fn array(&mut self, field: &Field, rows: &[Range<u64>]) -> Result<ArrayRef> {
        let node = *self.next(|gather| &mut gather.nodes)?;
        if rows.iter().any(|range| range.end > node / 2) {
            return Err(self.malformed("it has an array that is too short"));
        }
        if *field.data_type() == DataType::Null {
            return Ok(Arc::new(NullArray::new(total(rows) as usize)));
        }
        let validity = self.buffer()?;
        let has_nulls = node % 2 == 1 && validity[1] > 0;
        let nulls = has_nulls.then(|| self.bits(validity, rows).map(NullBuffer::new)).transpose()?;
        let array = match field.data_type() {
            DataType::Dictionary(keys, values) => {
                let keys = self.leaf(keys, rows, nulls)?;
                let keys = self.build(keys)?;
                return self.decoded(field, values, &keys);
            }
            list @ (DataType::List(_)
            | DataType::LargeList(_)
            | DataType::Map(..)
            | DataType::ListView(_)
            | DataType::LargeListView(_)
            | DataType::FixedSizeList(..)
            | DataType::Struct(_)) => self.nested(list, rows, nulls)?,
            leaf => self.leaf(leaf, rows, nulls)?,
        };
        self.build(array)
    }

    /// Reads values that have no parts.
    fn leaf(
        &mut self,
        data_type: &DataType,
        rows: &[Range<u64>],
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayDataBuilder> {
        let (plain, buffers) = match data_type {
            DataType::Boolean => {
                let buffer = self.buffer()?;
                (DataType::Boolean, vec![self.bits(buffer, rows)?.into_inner()])
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
                let (offsets, bytes) = self.offsets(rows, is_large(data_type))?;
                (text_type(data_type), vec![offsets, self.fixed(&bytes, 1)?])
            }
            DataType::Utf8View | DataType::BinaryView => {
                (text_type(data_type), self.viewed(rows, nulls.as_ref())?.into())
            }
            DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) => {
                let width = width(data_type);
                let numbers = widened(&self.fixed(rows, width)?, width as usize);
                (DataType::Decimal128(38, *scale), vec![numbers])
            }
            plain => (plain.clone(), vec![self.fixed(rows, width(plain))?]),
        };
        Ok(builder(plain, rows, nulls).buffers(buffers))
    }

    /// Reads lists or records.
    fn nested(
        &mut self,
        data_type: &DataType,
        rows: &[Range<u64>],
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayDataBuilder> {
        let (item, offsets, items) = match data_type {
            DataType::FixedSizeList(item, len) => {
                let scaled = |row: u64| row.saturating_mul(u64::try_from(*len).unwrap_or(0));
                let items: Vec<_> = rows.iter().map(|range| scaled(range.start)..scaled(range.end)).collect();
                let items = self.items(item, &items)?;
                let plain = DataType::FixedSizeList(plain_field(item, &items), *len);
                return Ok(builder(plain, rows, nulls).add_child_data(items.to_data()));
            }
            DataType::Struct(fields) => {
                let parts = fields.iter().map(|field| self.array(field, rows)).collect::<Result<Vec<_>>>()?;
                let plain = fields.iter().zip(&parts).map(|(field, part)| plain_field(field, part)).collect();
                let data = parts.iter().map(|part| part.to_data()).collect();
                return Ok(builder(DataType::Struct(plain), rows, nulls).child_data(data));
            }
            DataType::ListView(item) | DataType::LargeListView(item) => {
                let (offsets, items) = self.list_views(rows, is_large(data_type), nulls.as_ref())?;
                (item, offsets, items)
            }
            DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
                let (offsets, items) = self.offsets(rows, is_large(data_type))?;
                (item, offsets, items)
            }
            other => unreachable!("{other} is not nested"),
        };
        let items = self.items(item, &items)?;
        let plain = DataType::List(plain_field(item, &items));
        Ok(builder(plain, rows, nulls).add_buffer(offsets).add_child_data(items.to_data()))
    }

    /// Reads the items of lists.
    fn items(&mut self, item: &Field, rows: &[Range<u64>]) -> Result<ArrayRef> {
        // An item in the file that has no bytes has some in memory.
        if total(rows) > MAX_EMPTY && !has_bytes(item.data_type()) {
            return Err(self.malformed("it has lists of too many items that are empty or null"));
        }
        self.array(item, rows)
    }

    /// Returns the values of a dictionary that `keys` name.
    fn decoded(&self, field: &Field, values: &DataType, keys: &ArrayRef) -> Result<ArrayRef> {
        match self.table.dictionary(self.entry, dictionary_id(field), values)? {
            Some(values) => take(&values, keys, Some(TakeOptions { check_bounds: true }))
                .map_err(|error| self.invalid(&error)),
            // A writer may leave out the dictionary of a column that has only nulls.
            None if keys.null_count() == keys.len() => Ok(Arc::new(NullArray::new(keys.len()))),
            None => Err(self.malformed("its dictionary is not in the file")),
        }
    }

    fn bits(&self, buffer: Buffer, rows: &[Range<u64>]) -> Result<BooleanBuffer> {
        let parts: Vec<_> =
            rows.iter().map(|range| (buffer, range.start / 8..range.end.div_ceil(8))).collect();
        let mut bits = BooleanBufferBuilder::new(total(rows) as usize);
        for (bytes, range) in iter::zip(self.body.read(&parts)?, rows) {
            let start = (range.start % 8) as usize;
            bits.append_packed_range(start..start + (range.end - range.start) as usize, &bytes);
        }
        Ok(bits.finish())
    }

    /// Reads values of `width` bytes from the next buffer.
    fn fixed(&mut self, rows: &[Range<u64>], width: u64) -> Result<Values> {
        let buffer = self.buffer()?;
        let part =
            |range: &Range<u64>| (buffer, range.start.saturating_mul(width)..range.end.saturating_mul(width));
        let read = self.body.read(&rows.iter().map(part).collect::<Vec<_>>())?;
        let mut values = MutableBuffer::with_capacity(read.iter().map(|bytes| bytes.len()).sum());
        read.iter().for_each(|bytes| values.extend_from_slice(bytes));
        Ok(values.into())
    }

    /// Reads offsets of 4 bytes, or of 8 if `is_large`, from the next buffer. Returns offsets that begin with
    /// 0, and the items that they stand for.
    fn offsets(&mut self, rows: &[Range<u64>], is_large: bool) -> Result<(Values, Vec<Range<u64>>)> {
        let buffer = self.buffer()?;
        let width = if is_large { 8 } else { 4 };
        let rows: Vec<_> = rows.iter().filter(|range| range.start < range.end).collect();
        let part = |range: &&Range<u64>| (buffer, range.start * width..(range.end + 1) * width);
        let mut items = Items::default();
        for bytes in self.body.read(&rows.iter().map(part).collect::<Vec<_>>())? {
            let offsets = self.lengths(&bytes, width)?;
            for pair in offsets.windows(2) {
                items
                    .push(pair[0]..pair[1])
                    .ok_or_else(|| self.malformed("its offsets are not in order, or span more than 2 GiB"))?;
            }
        }
        Ok(items.finish())
    }

    /// Reads the offsets and the sizes of lists from the next two buffers.
    fn list_views(
        &mut self,
        rows: &[Range<u64>],
        is_large: bool,
        nulls: Option<&NullBuffer>,
    ) -> Result<(Values, Vec<Range<u64>>)> {
        let width = if is_large { 8 } else { 4 };
        let (offsets, sizes) = (self.fixed(rows, width)?, self.fixed(rows, width)?);
        let mut items = Items::default();
        for row in 0..total(rows) as usize {
            let at = row * width as usize..(row + 1) * width as usize;
            let range = if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                0..0
            } else {
                let (start, len) =
                    (self.lengths(&offsets[at.clone()], width)?, self.lengths(&sizes[at], width)?);
                start[0]..start[0].saturating_add(len[0])
            };
            items.push(range).ok_or_else(|| self.malformed("it has lists that are too long"))?;
        }
        Ok(items.finish())
    }

    /// Reads texts or bytes by their views. Returns their offsets, and their bytes.
    fn viewed(&mut self, rows: &[Range<u64>], nulls: Option<&NullBuffer>) -> Result<[Values; 2]> {
        let views = self.fixed(rows, VIEW as u64)?;
        let count = *self.next(|gather| &mut gather.views)?;
        let data = (0..count).map(|_| self.buffer()).collect::<Result<Vec<_>>>()?;
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("it has 4 bytes"));
        let views: Vec<&[u8]> = views.chunks_exact(VIEW).collect();
        let mut items = Items::default();
        let mut outside = Vec::new();
        for (row, view) in views.iter().enumerate() {
            let len =
                if nulls.is_some_and(|nulls| nulls.is_null(row)) { 0 } else { u64::from(number(&view[..4])) };
            items.push(0..len).ok_or_else(|| self.malformed("it has texts that are too long"))?;
            if len > INLINE as u64 {
                let (buffer, start) = (number(&view[8..12]) as usize, u64::from(number(&view[12..])));
                let buffer = data.get(buffer).ok_or_else(|| self.malformed("it has an invalid view"))?;
                outside.push((*buffer, start..start + len));
            }
        }
        let mut outside = self.body.read(&outside)?.into_iter();
        let mut bytes = MutableBuffer::new(0);
        for (view, ends) in views.iter().zip(items.ends.windows(2)) {
            let len = (ends[1] - ends[0]) as usize;
            if len <= INLINE {
                bytes.extend_from_slice(&view[4..4 + len])
            } else {
                bytes.extend_from_slice(&outside.next().expect("each long text was read"))
            }
        }
        Ok([Values::from_vec(items.ends), bytes.into()])
    }

    /// Returns offsets or lengths of `width` bytes, which must not be negative.
    fn lengths(&self, bytes: &[u8], width: u64) -> Result<Vec<u64>> {
        let number = |bytes: &[u8]| match bytes.try_into() {
            Ok(bytes) => i64::from(i32::from_le_bytes(bytes)),
            Err(_) => i64::from_le_bytes(bytes.try_into().expect("it has 4 or 8 bytes")),
        };
        let numbers = bytes.chunks_exact(width as usize).map(|bytes| u64::try_from(number(bytes)).ok());
        numbers.collect::<Option<_>>().ok_or_else(|| self.malformed("it has a negative offset"))
    }

    fn build(&self, array: ArrayDataBuilder) -> Result<ArrayRef> {
        array.build().map(make_array).map_err(|error| self.invalid(&error))
    }

    fn buffer(&mut self) -> Result<Buffer> {
        self.next(|gather| &mut gather.buffers).copied()
    }

    fn next<T>(&mut self, list: impl FnOnce(&mut Self) -> &mut &'a [T]) -> Result<&'a T> {
        let list = list(self);
        match list.split_first() {
            Some((first, rest)) => {
                *list = rest;
                Ok(first)
            }
            None => Err(self.malformed("it has fewer buffers than its type says")),
        }
    }

    fn invalid(&self, error: &ArrowError) -> DataError {
        self.malformed(&error.to_string())
    }

    fn malformed(&self, reason: &str) -> DataError {
        DataError::new(&self.body.blob.file().location, malformed(reason))
    }
}
