//! NumPy's `.npy` files: a header, which is a Python dictionary in text, and the elements.

use std::io::Read;

use loader_core::DType;

use super::array::ElementType;
use crate::error::DataProblem;

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum number of bytes of a header; NumPy's own limit for headers that are not trusted is 10,000.
const MAX_HEADER: u32 = 1 << 20;

/// The header of an array.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) element: Result<ElementType, DataProblem>,
    pub(super) shape: Vec<usize>,
    /// Number of bytes before the elements.
    pub(super) len: u64,
}

/// Reads the header at the start of `reader`.
pub(super) fn read_header(reader: &mut impl Read) -> Result<Header, DataProblem> {
    let mut start = [0; 8];
    reader.read_exact(&mut start)?;
    let [.., major, _minor] = start;
    if !start.starts_with(MAGIC) {
        return Err(malformed("the file does not begin with NumPy's magic bytes"));
    }
    let (text_len, len) = match major {
        1 => (u32::from(u16::from_le_bytes(read(reader)?)), 10),
        2 | 3 => (u32::from_le_bytes(read(reader)?), 12),
        _ => return Err(DataProblem::Unsupported(format!("version {major} of NumPy's format"))),
    };
    if text_len > MAX_HEADER {
        return Err(malformed("the header is too long"));
    }
    let mut text = vec![0; text_len as usize];
    reader.read_exact(&mut text)?;
    let text = std::str::from_utf8(&text).map_err(|_| malformed("the header is not text"))?;
    let (element, shape) = parse(text)?;
    Ok(Header { element, shape, len: len + u64::from(text_len) })
}

fn read<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], DataProblem> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Parses a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &str) -> Result<(Result<ElementType, DataProblem>, Vec<usize>), DataProblem> {
    let value = |key: &str| {
        let (_, rest) = text
            .split_once(&format!("'{key}':"))
            .ok_or_else(|| malformed(&format!("the header has no `{key}`")))?;
        Ok::<_, DataProblem>(rest.trim_start())
    };
    let shape = value("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let shape = shape.ok_or_else(|| malformed("`shape` is not a tuple"))?.0;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| malformed("`shape` is not made of sizes"))?;
    let order = value("fortran_order")?;
    let is_fortran = order.starts_with("True");
    if !is_fortran && !order.starts_with("False") {
        return Err(malformed("`fortran_order` is neither True nor False"));
    }
    let descr = value("descr")?;
    let element = match descr.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
        // One dimension has the same order in both.
        Some(_) if is_fortran && shape.iter().filter(|&&size| size != 1).count() > 1 => {
            Err(DataProblem::Unsupported("Fortran order; save `numpy.ascontiguousarray(array)`".to_owned()))
        }
        Some((descr, _)) => element_type(descr),
        None => Err(DataProblem::Unsupported("structured arrays; save each field as an array".to_owned())),
    };
    Ok((element, shape))
}

fn element_type(descr: &str) -> Result<ElementType, DataProblem> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let dtype = match kind {
        "b1" => DType::Bool,
        "u1" => DType::U8,
        "i1" => DType::I8,
        "u2" => DType::U16,
        "i2" => DType::I16,
        "u4" => DType::U32,
        "i4" => DType::I32,
        "u8" => DType::U64,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => {
            return Err(DataProblem::Unsupported(format!(
                "elements of NumPy's type `{descr}`; save them as numbers or booleans"
            )));
        }
    };
    match order {
        "<" | "|" => Ok(ElementType::little_endian(dtype)),
        ">" => Ok(ElementType { dtype, is_big_endian: true }),
        _ => Err(malformed("the byte order in `descr` is unknown")),
    }
}

fn malformed(reason: &str) -> DataProblem {
    DataProblem::Malformed { format: "NumPy", reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(text: &str) -> Result<Header, DataProblem> {
        let len = u16::try_from(text.len()).unwrap().to_le_bytes();
        read_header(&mut [MAGIC, b"\x01\x00", &len, text.as_bytes()].concat().as_slice())
    }

    #[test]
    fn headers_of_numpy() {
        let read = header("{'descr': '>f4', 'fortran_order': False, 'shape': (3, 4), }    \n").unwrap();
        assert_eq!((read.shape, read.len), (vec![3, 4], 10 + 64));
        assert_eq!(read.element.unwrap(), ElementType { dtype: DType::F32, is_big_endian: true });
        let scalar = header("{'descr': '|b1', 'fortran_order': False, 'shape': (), }").unwrap();
        assert_eq!(scalar.shape, [0_usize; 0]);
        let column = header("{'descr': '<i8', 'fortran_order': True, 'shape': (5,), }").unwrap();
        assert_eq!(column.element.unwrap().dtype, DType::I64);
    }

    #[test]
    fn what_tensors_cannot_hold_is_named() {
        for (descr, order, named) in [
            ("'<f4'", "True", "Fortran order"),
            ("'<U7'", "False", "`<U7`"),
            ("'|O'", "False", "`|O`"),
            ("[('a', '<f4')]", "False", "structured"),
        ] {
            let text = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': (3, 4), }}");
            let error = header(&text).unwrap().element.unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "[{}':, ()a-z0-9<>]{0,80}") {
            read_header(&mut [MAGIC, &bytes[..]].concat().as_slice()).ok();
            header(&text).ok();
            header(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({text}), }}")).ok();
        }
    }
}
