//! Shapes and copies.

use allocation_counter::{AllocationInfo, measure};
use loader::{AnyTensor, DType};

use crate::{Adapter, Copies, assert_equal, dtypes};

/// Maximum number of bytes that a call may allocate beside the elements, for shapes, strides and reference counts.
const MAX_OVERHEAD: u64 = 4096;

/// Tensors of the ranks 0 to 5 arrive, and empty ones with a zero in each position of the shape.
pub fn every_shape_arrives<A: Adapter>() {
    for dtype in dtypes::<A>() {
        for shape in shapes() {
            let tensor = tensor_of(dtype, shape);
            assert_equal::<A>(&tensor, &A::export(tensor.clone()).unwrap());
        }
    }
}

/// A tensor whose bytes are counted up, and alternate between 0 and 1 if they are booleans.
pub(crate) fn tensor_of(dtype: DType, shape: Vec<usize>) -> AnyTensor {
    let len = shape.iter().product::<usize>() * dtype.size();
    let bytes: Vec<u8> = (0..len).map(|n| if dtype == DType::Bool { n % 2 } else { n } as u8).collect();
    AnyTensor::from_bytes(dtype, shape, &bytes).unwrap()
}

pub(crate) fn shapes() -> Vec<Vec<usize>> {
    let full = [2, 3, 1, 4, 2];
    let mut shapes: Vec<Vec<usize>> = (0..=full.len()).map(|rank| full[..rank].to_vec()).collect();
    for rank in 1..=full.len() {
        for position in 0..rank {
            let mut shape = full[..rank].to_vec();
            shape[position] = 0;
            shapes.push(shape);
        }
    }
    shapes.push(vec![0; 5]);
    shapes
}

/// An empty tensor may have a shape whose nonzero sizes have a product that overflows. Frameworks multiply the sizes,
/// so it must be refused by an error that names the shape and says what to do.
pub fn shapes_that_overflow_are_refused<A: Adapter>() {
    let shape = [0, usize::MAX, 2];
    let tensor = AnyTensor::from_bytes(DType::F32, shape, &[]).unwrap();
    let Err(error) = A::export(tensor) else { panic!("it is not refused") };
    let text = error.to_string();
    assert!(
        text.contains(&format!("{shape:?}")) && text.contains("change the shape of the sample"),
        "{text}"
    );
}

/// A tensor that borrows has the address of the loader's tensor, and allocates less than 4 KiB whatever its
/// size. A tensor that is a copy has another address, and its elements are allocated once.
pub fn a_copied_tensor_is_allocated_once<A: Adapter>() {
    for dtype in dtypes::<A>() {
        let len = 1 << 20;
        let tensor = AnyTensor::from_bytes(dtype, [256, len / 256 / dtype.size()], &vec![1; len]).unwrap();
        let warm_up = A::export(tensor.clone()).unwrap();
        drop(warm_up);
        let (exported, allocated) = counted(|| A::export(tensor.clone()).unwrap());
        let address = A::inspect(&exported).address;
        match A::COPIES {
            Copies::Zero => {
                assert_eq!(address, Some(tensor.as_bytes().as_ptr() as usize), "{dtype}");
                assert!(allocated.bytes_total < MAX_OVERHEAD, "{dtype}: {allocated:?}");
            }
            Copies::One => {
                assert_ne!(address, Some(tensor.as_bytes().as_ptr() as usize), "{dtype}");
                assert_allocated_once(dtype, len, &allocated);
            }
        }
    }
}

pub(crate) fn assert_allocated_once(dtype: DType, len: usize, allocated: &AllocationInfo) {
    let once = len as u64..len as u64 + MAX_OVERHEAD;
    assert!(once.contains(&allocated.bytes_total), "{dtype}, {len} bytes: {allocated:?}");
}

/// Calls `action`, and counts what this thread allocates meanwhile.
pub(crate) fn counted<T>(action: impl FnOnce() -> T) -> (T, AllocationInfo) {
    let mut value = None;
    let allocated = measure(|| value = Some(action()));
    (value.expect("it was called"), allocated)
}
