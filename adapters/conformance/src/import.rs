//! Tensors of a framework as tensors of the loader.

use loader::AnyTensor;

use crate::{
    Importer, dtypes,
    layout::{assert_allocated_once, counted, shapes, tensor_of},
    values::patterns,
};

/// What was exported, of every dtype and shape, is imported with the same elements.
pub fn what_is_exported_is_imported<A: Importer>() {
    for dtype in dtypes::<A>() {
        let bytes = patterns(dtype);
        let extremes = AnyTensor::from_bytes(dtype, [bytes.len() / dtype.size()], &bytes).unwrap();
        for tensor in shapes().into_iter().map(|shape| tensor_of(dtype, shape)).chain([extremes]) {
            let imported = A::import(A::export(tensor.clone()).unwrap()).unwrap();
            assert_eq!((imported.dtype(), imported.shape()), (dtype, &A::shape_of(tensor.shape())[..]));
            assert_eq!(imported.as_bytes(), tensor.as_bytes(), "{dtype} {:?}", tensor.shape());
        }
    }
}

/// An import allocates the elements once.
pub fn an_import_is_allocated_once<A: Importer>() {
    for dtype in dtypes::<A>() {
        let len = 1 << 20;
        let tensor = AnyTensor::from_bytes(dtype, [256, len / 256 / dtype.size()], &vec![1; len]).unwrap();
        let exported = A::export(tensor.clone()).unwrap();
        // Keeps what the framework would otherwise take over, and lets it set up what it needs once.
        A::import(A::export(tensor.clone()).unwrap()).unwrap();
        let (imported, allocated) = counted(|| A::import(exported).unwrap());
        assert!(imported == tensor, "{dtype}");
        assert_allocated_once(dtype, len, &allocated);
    }
}

/// A transposed tensor of the framework, of every dtype, is imported with its elements in the right order, or
/// refused by an error that says so.
pub fn strided_tensors_are_copied_or_refused<A: Importer>() {
    for dtype in dtypes::<A>() {
        let tensor = tensor_of(dtype, vec![2, 3]);
        let transposed = A::transpose(&A::export(tensor.clone()).unwrap());
        match A::import(transposed) {
            Ok(imported) if A::IMPORTS_STRIDED => {
                let element = |n: usize| &tensor.as_bytes()[n * dtype.size()..][..dtype.size()];
                assert_eq!((imported.dtype(), imported.shape()), (dtype, [3, 2].as_slice()));
                assert_eq!(imported.as_bytes(), [0, 3, 1, 4, 2, 5].map(element).concat(), "{dtype}");
            }
            Ok(imported) => panic!("it is imported as {imported:?}"),
            Err(error) if A::IMPORTS_STRIDED => panic!("{error}"),
            Err(error) => assert!(error.to_string().contains("contiguous"), "{error}"),
        }
    }
}
