//! The conformance of the adapter to DLPack, and what is special to DLPack.

#![allow(unsafe_code, reason = "DLPack tensors are described by raw pointers")]

use std::{
    ffi::c_void,
    ptr, slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dlpark::{
    DlpackFlags, TensorRef,
    ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned},
    metadata::Dynamic,
};
use loader::{AnyTensor, DType, Tensor};
use loader_conformance::{Adapter, Copies, Importer, Inspected};
use loader_dlpack::{Dlpack, Error, IntoDlpack, dlpark, dtype_of, from_dlpack, from_raw};

loader::init_before_main!();

struct DlpackAdapter;

impl Adapter for DlpackAdapter {
    /// Counted, so that views can share it.
    type Tensor = Arc<Dlpack>;
    type Error = Error;

    const COPIES: Copies = Copies::Zero;

    fn export(tensor: AnyTensor) -> Result<Self::Tensor, Error> {
        tensor.into_dlpack().map(Arc::new)
    }

    fn inspect(tensor: &Self::Tensor) -> Inspected {
        let tensor = tensor.validate().unwrap();
        let data = data(&tensor);
        Inspected {
            dtype: dtype_of(tensor.dtype()).unwrap(),
            shape: tensor.shape().iter().map(|&size| size.try_into().unwrap()).collect(),
            bytes: data.to_vec(),
            address: Some(data.as_ptr() as usize),
        }
    }

    fn last_row(tensor: &Self::Tensor) -> Option<Self::Tensor> {
        let shape = tensor.validate().unwrap().shape().to_vec();
        let offset = (shape[0] - 1) * shape[1] * 4;
        Some(view(tensor, [1, shape[1]], [shape[1], 1], offset.try_into().unwrap()))
    }

    fn fill(mut tensor: Self::Tensor, value: f32) -> Self::Tensor {
        assert_eq!(tensor.flags(), DlpackFlags::empty());
        let mut writable = Arc::get_mut(&mut tensor).expect("it has no view").validate_mut().unwrap();
        // SAFETY: the adapter describes `f32` in memory that nothing else refers to.
        unsafe { writable.cpu_slice_mut::<f32>() }.unwrap().fill(value);
        tensor
    }
}

impl Importer for DlpackAdapter {
    const IMPORTS_STRIDED: bool = false;

    fn import(tensor: Self::Tensor) -> Result<AnyTensor, Error> {
        // SAFETY: the adapter or `view` has made the tensor.
        unsafe { from_dlpack(&tensor) }
    }

    fn transpose(tensor: &Self::Tensor) -> Self::Tensor {
        let shape = tensor.validate().unwrap().shape().to_vec();
        view(tensor, [shape[1], shape[0]], [1, shape[1]], 0)
    }
}

loader_conformance::suite!(DlpackAdapter);
loader_conformance::import_suite!(DlpackAdapter);

/// The bytes of a contiguous tensor that the adapter, or `view`, has made.
fn data<'a>(tensor: &TensorRef<'a>) -> &'a [u8] {
    // SAFETY: the adapter describes memory that lives as long as the managed tensor.
    let data = unsafe { tensor.offset_bytes_ptr() }.unwrap();
    // SAFETY: likewise.
    unsafe { slice::from_raw_parts(data, tensor.num_bytes()) }
}

/// A view, as frameworks make them: it shares the memory and keeps the managed tensor.
fn view(tensor: &Arc<Dlpack>, shape: [i64; 2], strides: [i64; 2], offset: u64) -> Arc<Dlpack> {
    let (data, dtype) = {
        let tensor = tensor.validate().unwrap();
        (tensor.data_ptr().cast_mut(), tensor.dtype())
    };
    let mut view = Dynamic::new(shape, strides).initialize(Arc::clone(tensor)).unwrap();
    view.set_data(data).set_dtype(dtype).set_device(DLDevice::CPU).set_byte_offset(offset);
    // SAFETY: the shape is part of the memory of `tensor`, which the view keeps.
    Arc::new(unsafe { view.finish() })
}

/// A tensor of another framework over `bytes`, which `change` changes before it is finished.
fn foreign(
    bytes: &'static [u8],
    dtype: DLDataType,
    shape: &[i64],
    change: impl FnOnce(&mut dlpark::ffi::DLTensor),
) -> Dlpack {
    let mut tensor = Dynamic::compact(shape).initialize(Box::new(())).unwrap();
    tensor.set_data(bytes.as_ptr().cast_mut().cast()).set_dtype(dtype).set_device(DLDevice::CPU);
    change(tensor.tensor_mut());
    // SAFETY: the tests describe parts of `bytes`, or what is refused before it is read.
    unsafe { tensor.finish() }
}

fn import(tensor: &Dlpack) -> Result<AnyTensor, Error> {
    // SAFETY: `foreign` has made it.
    unsafe { from_dlpack(tensor) }
}

const BYTES: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

#[test]
fn a_tensor_is_writable_unless_it_has_a_clone() {
    let tensor = Tensor::from_vec(vec![1_u8, 2], [2]).unwrap();
    let clone = tensor.clone();
    let shared = clone.into_dlpack().unwrap();
    assert_eq!(shared.flags(), DlpackFlags::READ_ONLY);
    assert_eq!(shared.validate().unwrap().data_ptr(), tensor.as_slice().as_ptr().cast());
    drop(shared);
    let mut alone = tensor.into_dlpack().unwrap();
    assert_eq!(alone.flags(), DlpackFlags::empty());
    let mut writable = alone.validate_mut().unwrap();
    // SAFETY: the tensor has two elements, and nothing else refers to them.
    unsafe { writable.cpu_slice_mut::<u8>() }.unwrap()[1] = 9;
    assert_eq!(import(&alone).unwrap().as_bytes(), [1, 9]);
}

#[test]
fn an_empty_tensor_has_no_address_and_every_other_has_strides() {
    let empty = Tensor::<f64>::zeros([0, 3]).unwrap().into_dlpack().unwrap();
    assert_eq!(empty.validate_export().unwrap().data_ptr(), ptr::null());
    let matrix = Tensor::<f64>::zeros([2, 3]).unwrap().into_dlpack().unwrap();
    assert_eq!(matrix.validate_export().unwrap().strides(), Some([3, 1].as_slice()));
    let huge = Tensor::<u8>::zeros([0, usize::MAX, 2]).unwrap().into_dlpack();
    assert!(matches!(huge.err(), Some(Error::Shape { .. })));
}

#[test]
fn any_address_and_offset_is_imported() {
    let tensor = foreign(BYTES, DLDataType::U32, &[2], |tensor| tensor.byte_offset = 1);
    let imported = import(&tensor).unwrap();
    assert_eq!((imported.dtype(), imported.as_bytes()), (DType::U32, &BYTES[1..9]));
    let empty = foreign(BYTES, DLDataType::I16, &[3, 0], |tensor| tensor.data = ptr::null_mut());
    assert_eq!(import(&empty).unwrap().shape(), [3, 0]);
    // Any byte of a boolean but 0 is true.
    let truths = import(&foreign(BYTES, DLDataType::BOOL, &[3], |_| ())).unwrap();
    let truths: Vec<bool> = truths.as_slice::<loader::Bool>().unwrap().iter().map(|b| b.get()).collect();
    assert_eq!(truths, [false, true, true]);
    // The stride of a dimension of size 1 has no meaning.
    let row = foreign(BYTES, DLDataType::U8, &[1, 3], |tensor| {
        // SAFETY: the tensor has two strides.
        unsafe { tensor.strides.write(77) };
    });
    assert_eq!(import(&row).unwrap().as_bytes(), [0, 1, 2]);
}

#[test]
fn what_cannot_be_imported_is_refused_by_name() {
    let refused = |dtype, change: fn(&mut dlpark::ffi::DLTensor)| {
        import(&foreign(BYTES, dtype, &[2, 3], change)).unwrap_err().to_string()
    };
    assert_eq!(
        refused(DLDataType::U8, |tensor| tensor.device = DLDevice::cuda(3)),
        "the DLPack tensor is on CUDA (device 3); copy it to the CPU first"
    );
    assert_eq!(
        refused(DLDataType::U8, |tensor| tensor.device.device_type = DLDeviceType::CUDAHOST),
        "the DLPack tensor is in CUDA's page-locked memory; copy it to ordinary memory first"
    );
    let device = DLDevice { device_type: DLDeviceType(99), device_id: 0 };
    assert!(matches!(
        import(&foreign(BYTES, DLDataType::U8, &[2], |tensor| tensor.device = device)),
        Err(Error::Device(found)) if found.device_type == DLDeviceType(99)
    ));
    let complex = refused(DLDataType::C64, |_| ());
    assert!(complex.contains("complex64"), "{complex}");
    let vectors = refused(DLDataType::new(DLDataTypeCode::FLOAT, 32, 4), |_| ());
    assert!(vectors.contains("float32 in vectors of 4"), "{vectors}");
    let float8 = refused(DLDataType::F8E4M3FN, |_| ());
    assert!(float8.contains("code 10 and 8 bits"), "{float8}");
    let null = refused(DLDataType::U8, |tensor| tensor.data = ptr::null_mut());
    assert!(null.contains("null"), "{null}");
    let columns = refused(DLDataType::U8, |tensor| {
        // SAFETY: the tensor has two strides.
        unsafe { slice::from_raw_parts_mut(tensor.strides, 2) }.copy_from_slice(&[1, 2]);
    });
    assert_eq!(
        columns,
        "the DLPack tensor of shape [2, 3] has the strides [1, 2], so it is not contiguous; make a contiguous copy \
         of it first"
    );
    let negative = refused(DLDataType::U8, |tensor| {
        // SAFETY: the tensor has two sizes.
        unsafe { tensor.shape.write(-1) };
    });
    assert!(negative.contains("negative"), "{negative}");
}

/// Counts how often it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed); // only the total matters
    }
}

#[test]
fn a_raw_tensor_is_deleted_once_also_after_an_error() {
    let deleted = Arc::new(AtomicUsize::new(0));
    let raw = |dtype| {
        let context = Box::new(Counted(Arc::clone(&deleted)));
        let mut tensor = Dynamic::compact([3_i64]).initialize_as::<DLManagedTensor>(context).unwrap();
        let data: *mut c_void = BYTES.as_ptr().cast_mut().cast();
        tensor.set_data(data).set_dtype(dtype).set_device(DLDevice::CPU);
        // SAFETY: the shape is a part of `BYTES`.
        unsafe { tensor.finish() }.into_raw()
    };
    // SAFETY: the tensor is valid, and the function takes it.
    let imported = unsafe { from_raw(raw(DLDataType::I8)) }.unwrap();
    assert_eq!((imported.as_bytes(), deleted.load(Ordering::Relaxed)), ([0, 1, 2].as_slice(), 1));
    // SAFETY: as above.
    let refused = unsafe { from_raw(raw(DLDataType::C64)) };
    assert!(matches!(refused, Err(Error::DTypeNotInLoader(_))));
    assert_eq!(deleted.load(Ordering::Relaxed), 2);
    // SAFETY: null is refused.
    let null = unsafe { from_raw(ptr::null_mut::<DLManagedTensorVersioned>()) };
    assert!(matches!(null, Err(Error::Raw(_))));
}

#[test]
fn another_major_version_is_refused() {
    let raw = Tensor::<u8>::zeros([1]).unwrap().into_dlpack().unwrap().into_raw();
    // SAFETY: the pointer is that of a managed tensor, which this test owns.
    let version = unsafe { &mut (*raw).version };
    version.major += 1;
    // SAFETY: the tensor is valid, and the function takes it.
    let refused = unsafe { from_raw(raw) };
    assert!(matches!(refused, Err(Error::Raw(_))), "{refused:?}");
}
