//! Dtypes and values.

use loader::{AnyTensor, DType};

use crate::{Adapter, assert_equal};

/// Every dtype arrives bit for bit, with NaN payloads and extremes, or is refused by an error that names it
/// and says what to do.
pub fn every_dtype_arrives_bit_for_bit_or_is_refused<A: Adapter>() {
    for &dtype in DType::ALL {
        let bytes = patterns(dtype);
        let tensor = AnyTensor::from_bytes(dtype, [bytes.len() / dtype.size()], &bytes).unwrap();
        match A::export(tensor.clone()) {
            Err(error) if A::UNSUPPORTED.contains(&dtype) => {
                let text = error.to_string();
                assert!(text.contains(dtype.name()) && text.contains(A::ADVICE), "{dtype}: {text}");
            }
            Err(error) => panic!("{dtype}: {error}"),
            Ok(_) if A::UNSUPPORTED.contains(&dtype) => panic!("{dtype} is not refused"),
            Ok(exported) => assert_equal::<A>(&tensor, &exported),
        }
    }
}

/// The bytes of booleans may come from a file or from another process, so they need not be 0 or 1. Most
/// frameworks compute nonsense with such bytes, so these must arrive as 1, or unchanged if the framework allows
/// any byte. A framework without booleans refuses them.
pub fn invalid_booleans_arrive_as_true<A: Adapter>() {
    let bytes = [0, 1, 2, 255];
    let exported = A::export(AnyTensor::from_bytes(DType::Bool, [4], &bytes).unwrap());
    if A::UNSUPPORTED.contains(&DType::Bool) {
        assert!(exported.is_err(), "it is not refused");
        return;
    }
    let expected = if A::BOOL_IS_ANY_BYTE { bytes } else { [0, 1, 1, 1] };
    assert_eq!(A::inspect(&exported.unwrap()).bytes, expected);
}

/// Elements whose bits are likely to be changed by a conversion: zeros, ones, the sign alone, all but the
/// sign, subnormal numbers, infinities, and NaNs that are quiet, signalling and with a payload.
pub(crate) fn patterns(dtype: DType) -> Vec<u8> {
    if dtype == DType::Bool {
        return vec![0, 1, 1, 0];
    }
    let bits = 8 * dtype.size();
    let (sign, mantissa) = match dtype {
        DType::F16 => (1 << 15, 10),
        DType::BF16 => (1 << 15, 7),
        DType::F32 => (1 << 31, 23),
        _ => (1u64 << (bits - 1), 52.min(bits / 2)),
    };
    let fraction = (1u64 << mantissa) - 1;
    let infinity = (sign - 1) & !fraction;
    let positive = [0, 1, fraction, sign - 1, infinity, infinity | 1, infinity | (fraction + 1) >> 1, 0x55];
    let all = positive.iter().flat_map(|&bits| [bits, bits | sign]);
    all.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size())).collect()
}
