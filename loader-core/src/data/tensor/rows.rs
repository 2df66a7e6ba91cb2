//! A tensor that is written row by row. It has no clones yet, so writing a row does not have to check for
//! clones.
//!
//! A dataset that loads the samples of a batch together writes them as [`BatchRows`] into memory of the batch. The
//! stack takes this memory over and finds each sample in its place, so that no sample is copied. Alternative
//! considered: memory of the worker that is reused for samples. Rejected because each sample is then still copied.

use std::{marker::PhantomData, sync::Arc};

use loader_ipc::buffer::Buffer;

use super::{Element, Tensor, TensorError, bytes_of};

/// Maximum number of rows for which memory is reserved before they come. A stream may have far fewer samples than a
/// batch may have. More rows are moved to more memory.
const MAX_RESERVED_ROWS: usize = 1 << 16;

/// Maximum number of bytes that are reserved for more than [`MIN_RESERVED_ROWS`] rows.
const MAX_RESERVED_BYTES: usize = 1 << 30;

/// Number of rows for which memory is always reserved.
const MIN_RESERVED_ROWS: usize = 1 << 12;

/// A tensor that is written row by row.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    buffer: Buffer,
    /// Maximum number of rows, then the shape of a row.
    shape: Vec<usize>,
    row_bytes: usize,
    /// Number of rows that the memory has room for.
    reserved: usize,
    /// Number of rows written so far.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Rows<T> {
    /// Allocates memory for at most `capacity` rows of the shape `row`.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn new(capacity: usize, row: &[usize]) -> Result<Self, TensorError> {
        let shape: Vec<usize> = [&[capacity], row].concat();
        let Some(buffer) = bytes_of(T::DTYPE, &shape).and_then(Buffer::for_overwrite) else {
            return Err(TensorError::TooLarge { shape });
        };
        let row_bytes = row.iter().product::<usize>() * size_of::<T>();
        Ok(Self { buffer, shape, row_bytes, reserved: capacity, len: 0, element: PhantomData })
    }

    /// As [`new`](Self::new), but reserves the memory of many rows only when they come. The caller calls
    /// [`reserve`](Self::reserve) before it writes rows.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn at_most(capacity: usize, row: &[usize]) -> Result<Self, TensorError> {
        let row_bytes = bytes_of(T::DTYPE, row).unwrap_or(usize::MAX);
        let reserved = MAX_RESERVED_ROWS.min(MIN_RESERVED_ROWS.max(MAX_RESERVED_BYTES / row_bytes.max(1)));
        let mut rows = Self::new(capacity.min(reserved), row)?;
        rows.shape[0] = capacity;
        Ok(rows)
    }

    /// Makes room for `count` more rows.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), TensorError> {
        if count <= self.reserved - self.len { Ok(()) } else { self.grow(count) }
    }

    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), TensorError> {
        let rows = self.len.saturating_add(count.max(self.len)).min(self.shape[0]);
        let mut more = Self::new(rows, &self.shape[1..])?;
        let written = self.len * self.row_bytes;
        more.buffer.as_bytes_mut()[..written].copy_from_slice(&self.buffer.as_bytes()[..written]);
        (self.buffer, self.reserved) = (more.buffer, rows);
        Ok(())
    }

    /// Takes over the memory in which `first`, a row of the shape `row`, is the first of exactly `capacity` rows.
    /// Returns `None` if there is no such memory.
    pub(crate) fn of_batch(capacity: usize, row: &[usize], first: &Buffer) -> Option<Self> {
        let (whole, start) = first.whole()?;
        let shape: Vec<usize> = [&[capacity], row].concat();
        let bytes = whole.as_bytes().len();
        if start != 0 || bytes_of(T::DTYPE, &shape) != Some(bytes) {
            return None;
        }
        let buffer = Buffer::part(whole, 0, bytes);
        let row_bytes = row.iter().product::<usize>() * size_of::<T>();
        Some(Self { buffer, shape, row_bytes, reserved: capacity, len: 0, element: PhantomData })
    }

    /// Counts `row` as the next row if its place in memory is that of the next row. Otherwise returns false, and the
    /// caller copies the row. `row` must have the shape of the other rows.
    #[inline]
    pub(crate) fn add_in_place(&mut self, row: &Buffer) -> bool {
        let is_next = match (row.whole(), self.buffer.whole()) {
            (Some((of_row, start)), Some((own, _))) => {
                Arc::ptr_eq(of_row, own) && start == self.len * self.row_bytes && self.len < self.shape[0]
            }
            _ => false,
        };
        self.len += usize::from(is_next);
        is_next
    }

    /// Shape of a row.
    #[inline]
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[1..]
    }

    /// Returns the next row for writing. Its previous content is arbitrary.
    ///
    /// # Panics
    /// Panics if the batch has `capacity` rows already, or if the system has no memory for the row.
    #[inline]
    pub(crate) fn next_row(&mut self) -> &mut [T] {
        self.next_rows(1)
    }

    /// Returns the next `count` rows for writing, as [`next_row`](Self::next_row) does.
    #[inline]
    pub(crate) fn next_rows(&mut self, count: usize) -> &mut [T] {
        assert!(count <= self.shape[0] - self.len, "the batch has more samples than it was started for");
        let rows = self.len * self.row_bytes..(self.len + count) * self.row_bytes;
        self.len += count;
        bytemuck::cast_slice_mut(&mut self.buffer.as_bytes_mut()[rows])
    }

    /// Returns the tensor of the rows written so far.
    pub(crate) fn finish(mut self) -> Tensor<T> {
        self.shape[0] = self.len;
        let buffer = match self.buffer.whole() {
            Some((whole, _)) => Arc::clone(whole),
            None => Arc::new(self.buffer),
        };
        Tensor::over(buffer, self.shape)
    }
}

/// The samples that a dataset loads together for one batch: tensors of the same shape.
#[doc(hidden)]
#[derive(Debug)]
pub struct BatchRows<T: Element> {
    rows: RowStorage<T>,
    row: Vec<usize>,
}

#[derive(Debug)]
enum RowStorage<T: Element> {
    /// In memory of the batch, of shape `[samples, ..row]`.
    InBatch(Tensor<T>),
    /// One tensor for each sample.
    Single(Vec<Tensor<T>>),
}

impl<T: Element> BatchRows<T> {
    /// Makes memory for `samples` samples of the shape `row`, whose previous content is arbitrary. It is memory of the
    /// batch if there is room in it, and the dataset [is collated](crate::SampleContext::is_collated).
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub fn new(samples: usize, row: &[usize], is_collated: bool) -> Result<Self, TensorError> {
        let shape = [&[samples], row].concat();
        let in_batch = bytes_of(T::DTYPE, &shape).filter(|_| is_collated).and_then(Buffer::of_batch);
        let rows = match in_batch {
            Some(buffer) => RowStorage::InBatch(Tensor::over(Arc::new(buffer), shape)),
            None => RowStorage::Single(
                (0..samples).map(|_| Tensor::for_overwrite(row)).collect::<Result<_, _>>()?,
            ),
        };
        Ok(Self { rows, row: row.to_vec() })
    }

    /// Returns sample `position` for writing.
    ///
    /// # Panics
    /// Panics if there are not as many samples.
    pub fn row_mut(&mut self, position: usize) -> &mut [T] {
        let (tensor, position) = match &mut self.rows {
            RowStorage::InBatch(tensor) => (tensor, position),
            RowStorage::Single(tensors) => (&mut tensors[position], 0),
        };
        let len = self.row.iter().product::<usize>();
        let elements = tensor.as_mut_slice().expect("the tensor has no clone yet");
        &mut elements[position * len..(position + 1) * len]
    }

    /// Returns the samples. Those in memory of the batch can be read, but not kept: a sample that is kept keeps the
    /// memory of the whole batch.
    pub fn into_samples(self) -> Vec<Tensor<T>> {
        let tensor = match self.rows {
            RowStorage::Single(tensors) => return tensors,
            RowStorage::InBatch(tensor) => tensor,
        };
        let len = self.row.iter().product::<usize>() * size_of::<T>();
        let part = |position| Arc::new(Buffer::part(&tensor.buffer, position * len, len));
        (0..tensor.len()).map(|position| Tensor::over(part(position), self.row.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use loader_ipc::{SlotMemory, arena::Arena, heap::HeapPool, lent, memory};

    use super::*;
    use crate::{
        AnyTensor,
        data::collate::{AnyStack, Sample, Stack},
    };

    fn heap() -> Arena {
        Arena::on_heap(&HeapPool::default())
    }

    /// Loads samples of the numbers 0, 1, 2 and so on, as a dataset does.
    fn load(arena: &mut Arena, samples: usize, is_collated: bool) -> Vec<Tensor<i64>> {
        arena.within_load(|| {
            let mut rows = BatchRows::new(samples, &[2], is_collated).unwrap();
            (0..samples).for_each(|position| rows.row_mut(position).fill(position as i64));
            rows.into_samples()
        })
    }

    fn stack<S: Stack>(arena: &mut Arena, mut stack: S, samples: Vec<S::Sample>) -> S::Batch {
        arena.within(|| {
            samples.into_iter().for_each(|sample| stack.push(sample).unwrap());
            stack.finish().unwrap()
        })
    }

    #[test]
    fn samples_in_memory_of_the_batch_are_not_copied() {
        let mut arena = heap();
        let samples = load(&mut arena, 3, true);
        let written = samples[0].as_slice().as_ptr();
        let mut batch = stack(&mut arena, Tensor::stack(3), samples);
        assert_eq!(batch.as_slice().as_ptr(), written);
        assert_eq!(batch, Tensor::from_slice(&[0, 0, 1, 1, 2, 2], [3, 2]).unwrap());
        batch.as_mut_slice().expect("nobody else has the memory")[0] = 7;
        assert_eq!(batch.as_slice().as_ptr(), written);

        let samples = load(&mut arena, 3, true);
        let written = samples[0].as_slice().as_ptr().cast();
        let samples = samples.into_iter().map(AnyTensor::from).collect();
        let batch = stack(&mut arena, AnyStack::new(3), samples);
        assert_eq!((batch.as_bytes().as_ptr(), batch.shape()), (written, [3, 2].as_slice()));
        assert_eq!(batch.as_slice::<i64>(), Some([0, 0, 1, 1, 2, 2].as_slice()));
    }

    #[test]
    fn samples_are_written_into_the_slot_of_the_batch() {
        let len = NonZeroUsize::new(4096).unwrap();
        let slot = SlotMemory::map(memory::reserve(len).unwrap(), len).unwrap();
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let samples = load(&mut arena, 3, true);
        let written = samples[0].as_slice().as_ptr();
        let batch = stack(&mut arena, Tensor::stack(3), samples);
        assert!(batch.is_shared_memory());
        let encoded = arena.encode(&batch).unwrap();
        drop((arena, batch));
        let received: Tensor<i64> = lent::decode(slot.lend(()).unwrap(), encoded).unwrap();
        assert_eq!(received.as_slice(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(received.as_slice().as_ptr(), written, "this process has the slot mapped once");

        drop(received);
        let mut arena = Arena::in_slot(slot.lend(()).unwrap());
        let samples = load(&mut arena, 1000, true);
        assert!(samples[999].buffer().whole().is_none(), "the slot has no room");
        assert_eq!(stack(&mut arena, Tensor::stack(1000), samples).row(999), [999; 2]);
    }

    /// A batch of a stream may have far fewer samples than `batch_size`.
    #[test]
    fn memory_is_reserved_for_many_rows_only_when_they_come() {
        let mut rows = Rows::<u64>::at_most(1 << 40, &[2]).unwrap();
        assert_eq!(rows.buffer.as_bytes().len(), 16 * MAX_RESERVED_ROWS);
        let large = Rows::<u8>::at_most(1 << 40, &[1 << 16]).unwrap();
        assert_eq!(large.buffer.as_bytes().len(), MAX_RESERVED_BYTES);
        let count = 3 * MAX_RESERVED_ROWS;
        for number in 0..count {
            rows.reserve(1).unwrap();
            rows.next_row().fill(number as u64);
        }
        rows.reserve(2 * count).unwrap();
        rows.next_rows(2 * count).fill(7);
        let tensor = rows.finish();
        assert_eq!(tensor.shape(), [3 * count, 2]);
        assert!((0..count).all(|number| tensor.row(number) == [number as u64; 2]));
        assert_eq!(tensor.row(3 * count - 1), [7, 7]);
        let mut few = Rows::<u8>::at_most(3, &[1]).unwrap();
        few.reserve(3).unwrap();
        assert_eq!(few.buffer.as_bytes().len(), 3);
    }

    #[test]
    fn samples_that_are_not_in_the_order_of_the_batch_are_copied() {
        let orders: [(usize, &[usize]); 6] =
            [(3, &[2, 1, 0]), (3, &[0, 2, 1]), (3, &[1, 2]), (4, &[0, 1, 2]), (3, &[0, 0, 1]), (3, &[0, 1])];
        for (capacity, order) in orders {
            let expected: Vec<i64> = order.iter().flat_map(|&number| [number as i64; 2]).collect();
            let mut arena = heap();
            let loaded = load(&mut arena, 3, true);
            let samples: Vec<_> = order.iter().map(|&number| loaded[number].clone()).collect();
            let any = samples.iter().cloned().map(AnyTensor::from).collect();
            let batch = stack(&mut arena, AnyStack::new(capacity), any);
            assert_eq!(batch.as_slice::<i64>(), Some(&*expected), "{order:?}");
            let batch = stack(&mut arena, Tensor::stack(capacity), samples);
            assert_eq!(
                (batch.as_slice(), batch.shape()),
                (&*expected, [order.len(), 2].as_slice()),
                "{order:?}"
            );
            assert!(
                loaded.iter().zip(0..).all(|(sample, number)| sample.as_slice() == [number; 2]),
                "{order:?}"
            );
        }
    }

    #[test]
    fn samples_that_something_may_keep_have_memory_of_their_own() {
        let mut arena = heap();
        let of_batch =
            |samples: Vec<Tensor<i64>>| samples.iter().all(|sample| sample.buffer().whole().is_some());
        assert!(of_batch(load(&mut arena, 3, true)) && !of_batch(load(&mut arena, 3, false)));
        let outside = BatchRows::<i64>::new(3, &[2], true).unwrap().into_samples();
        assert!(!of_batch(outside));
    }
}
