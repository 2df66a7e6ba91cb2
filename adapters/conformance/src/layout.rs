//! Shapes, strides and copies.

use allocation_counter::{AllocationInfo, measure};
use loader::{AnyTensor, DType};

use crate::{Adapter, Copies, assert_equal, dtypes};

/// Bytes that a call may allocate beside the elements, for shapes, strides and reference counts.
const BESIDE: u64 = 4096;

/// Tensors of the ranks 0 to 5 arrive, and empty ones with a zero in each position of the shape. What is
/// imported again has the same elements.
pub fn every_shape_arrives<A: Adapter>() {
    for dtype in dtypes::<A>() {
        for shape in shapes() {
            let len = shape.iter().product::<usize>() * dtype.size();
            let bytes: Vec<u8> =
                (0..len).map(|n| if dtype == DType::Bool { n % 2 } else { n } as u8).collect();
            let tensor = AnyTensor::from_bytes(dtype, shape, &bytes).unwrap();
            let exported = A::export(tensor.clone()).unwrap();
            assert_equal::<A>(&tensor, &exported);
            if let Some(imported) = A::import(exported) {
                let imported = imported.unwrap();
                assert_eq!(imported.shape(), A::shape_of(tensor.shape()));
                assert_eq!(imported.as_bytes(), tensor.as_bytes());
            }
        }
    }
}

fn shapes() -> Vec<Vec<usize>> {
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

/// A tensor that borrows has the address of the loader's tensor, and allocates less than 4 KiB whatever its
/// size. A tensor that is a copy has another address, and its elements are allocated once. An import
/// allocates the elements once.
pub fn a_copied_tensor_is_allocated_once<A: Adapter>() {
    for dtype in dtypes::<A>() {
        let len = 1 << 20;
        let tensor = AnyTensor::from_bytes(dtype, [256, len / 256 / dtype.size()], &vec![1; len]).unwrap();
        let warm_up = A::export(tensor.clone()).unwrap();
        drop(warm_up);
        let (exported, allocated) = counted(|| A::export(tensor.clone()).unwrap());
        let address = A::see(&exported).address;
        match A::COPIES {
            Copies::Zero => {
                assert_eq!(address, Some(tensor.as_bytes().as_ptr() as usize), "{dtype}");
                assert!(allocated.bytes_total < BESIDE, "{dtype}: {allocated:?}");
            }
            Copies::One => {
                assert_ne!(address, Some(tensor.as_bytes().as_ptr() as usize), "{dtype}");
                assert_allocated_once(dtype, len, &allocated);
            }
        }
        let (imported, allocated) = counted(|| A::import(exported));
        if let Some(imported) = imported {
            assert!(imported.unwrap() == tensor, "{dtype}");
            assert_allocated_once(dtype, len, &allocated);
        }
    }
}

fn assert_allocated_once(dtype: DType, len: usize, allocated: &AllocationInfo) {
    let once = len as u64..len as u64 + BESIDE;
    assert!(once.contains(&allocated.bytes_total), "{dtype}, {len} bytes: {allocated:?}");
}

/// Calls `action`, and counts what this thread allocates meanwhile.
fn counted<T>(action: impl FnOnce() -> T) -> (T, AllocationInfo) {
    let mut value = None;
    let allocated = measure(|| value = Some(action()));
    (value.expect("it was called"), allocated)
}

/// A transposed tensor of the framework is imported with its elements in the right order, or refused by an
/// error that says so.
pub fn strided_tensors_are_copied_or_refused<A: Adapter>() {
    let dtype = dtypes::<A>().find(|dtype| dtype.size() == 1).expect("every framework has bytes");
    let tensor = AnyTensor::from_bytes(dtype, [2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
    let Some(transposed) = A::transpose(&A::export(tensor).unwrap()) else { return };
    let Some(imported) = A::import(transposed) else { return };
    match imported {
        Ok(imported) if A::IMPORTS_STRIDED => {
            let expected = AnyTensor::from_bytes(dtype, [3, 2], &[1, 4, 2, 5, 3, 6]).unwrap();
            assert_eq!(imported, expected);
        }
        Ok(imported) => panic!("it is imported as {imported:?}"),
        Err(error) if A::IMPORTS_STRIDED => panic!("{error}"),
        Err(error) => assert!(error.to_string().contains("contiguous"), "{error}"),
    }
}
