//! The orientation in EXIF data: how an image must be turned to be upright.

use super::Orientation;

impl Orientation {
    /// Reads the orientation in `exif`, which may begin with `Exif\0\0`. Damaged data is ignored, as Pillow
    /// does.
    pub(super) fn of_exif(exif: &[u8]) -> Self {
        let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        Self::of_tiff(tiff)
    }

    /// Reads the orientation in TIFF data. Its type should be SHORT, and some programs write LONG.
    pub(super) fn of_tiff(tiff: &[u8]) -> Self {
        let Some((_, value)) = TagValue::find(tiff, 0x0112) else { return Self::default() };
        let number = match value.kind {
            TagValue::SHORT => Some(value.short()),
            TagValue::LONG => u16::try_from(value.long()).ok(),
            _ => None,
        };
        number.map_or_else(Self::default, Self::new)
    }

    /// Reads the orientation in the metadata of a JPEG.
    pub(super) fn of_jpeg(file: &[u8]) -> Self {
        let mut rest = file.get(2..).unwrap_or_default();
        // Metadata comes before the first scan (0xDA).
        while let &[0xFF, marker, high, low, ..] = rest
            && marker != 0xDA
        {
            // A marker may follow any number of fill bytes.
            if marker == 0xFF {
                rest = &rest[1..];
                continue;
            }
            let end = 2 + usize::from(u16::from_be_bytes([high, low]));
            let Some((segment, after)) = rest.split_at_checked(end.max(4)) else { break };
            if marker == 0xE1 && segment[4..].starts_with(b"Exif\0\0") {
                return Self::of_exif(&segment[4..]);
            }
            rest = after;
        }
        Self::default()
    }
}

/// Finds a tag with one 16-bit number in the first directory of TIFF data. Returns its position and its
/// value.
#[cfg(feature = "more-images")]
pub(super) fn short_tag(tiff: &[u8], tag: u16) -> Option<(usize, u16)> {
    let (position, value) = TagValue::find(tiff, tag).filter(|(_, value)| value.kind == TagValue::SHORT)?;
    Some((position, value.short()))
}

/// The first value of a tag in TIFF data.
#[derive(Debug, Clone, Copy)]
struct TagValue {
    /// Type of the value.
    kind: u16,
    bytes: [u8; 4],
    is_little: bool,
}

impl TagValue {
    /// The type of a 16-bit number.
    const SHORT: u16 = 3;
    /// The type of a 32-bit number.
    const LONG: u16 = 4;

    /// Finds the tag in the first directory. Returns the position of its value too.
    fn find(tiff: &[u8], tag: u16) -> Option<(usize, Self)> {
        let is_little = match tiff.first_chunk()? {
            b"II*\0" => true,
            b"MM\0*" => false,
            _ => return None,
        };
        let short = |position: usize| {
            let bytes = *tiff.get(position..)?.first_chunk()?;
            Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
        };
        let start = *tiff.get(4..)?.first_chunk()?;
        let start = if is_little { u32::from_le_bytes(start) } else { u32::from_be_bytes(start) } as usize;
        (0..usize::from(short(start)?)).find_map(|entry| {
            let entry = start + 2 + 12 * entry;
            let (kind, position) = (short(entry + 2)?, entry + 8);
            let bytes = *tiff.get(position..)?.first_chunk()?;
            (short(entry)? == tag).then_some((position, Self { kind, bytes, is_little }))
        })
    }

    fn short(self) -> u16 {
        let [first, second, ..] = self.bytes;
        if self.is_little { u16::from_le_bytes([first, second]) } else { u16::from_be_bytes([first, second]) }
    }

    fn long(self) -> u32 {
        if self.is_little { u32::from_le_bytes(self.bytes) } else { u32::from_be_bytes(self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_number_may_have_16_or_32_bits() {
        let exif = |order: &[u8], kind: &[u8], value: &[u8]| {
            let words: [&[u8]; 3] = match order {
                b"II" => [b"*\0\x08\0\0\0\x01\0\x12\x01", kind, b"\x01\0\0\0"],
                _ => [b"\0*\0\0\0\x08\0\x01\x01\x12", kind, b"\0\0\0\x01"],
            };
            Orientation::of_exif(&[b"Exif\0\0", order, &words.concat(), value].concat())
        };
        let turned = Orientation::new(6);
        assert!(!turned.is_upright());
        assert_eq!(exif(b"II", b"\x03\0", b"\x06\0\0\0"), turned);
        assert_eq!(exif(b"MM", b"\0\x03", b"\0\x06\0\0"), turned);
        assert_eq!(exif(b"II", b"\x04\0", b"\x06\0\0\0"), turned);
        assert_eq!(exif(b"MM", b"\0\x04", b"\0\0\0\x06"), turned);
        // 65542 is no orientation, although its last 16 bits are.
        assert!(exif(b"MM", b"\0\x04", b"\0\x01\0\x06").is_upright());
        assert!(exif(b"II", b"\x05\0", b"\x06\0\0\0").is_upright());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), start in 0..4usize) {
            Orientation::of_exif(&bytes);
            let starts: [&[u8]; 4] =
                [b"", b"II*\0\x08\0\0\0\x03\0", b"MM\0*\0\0\0\x08\0\x03", b"\xFF\xD8\xFF\xE1\0\x30Exif\0\0II*\0"];
            let start = starts[start];
            bytes.splice(0..0, start.iter().copied());
            Orientation::of_exif(&bytes);
            Orientation::of_jpeg(&bytes);
        }
    }
}
