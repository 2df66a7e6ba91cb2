//! Checks that all coded pixels of a JPEG are there, for every kind of JPEG that zune-jpeg decodes.
//!
//! zune-jpeg decodes missing coded pixels as if they were zeros and reports no error, not even in its strict
//! mode. Therefore this module reads every scan before zune-jpeg does, without inverse transform and colours.

use crate::{
    JpegError,
    area::Size,
    baseline::END_OF_IMAGE,
    entropy::{Bits, Entropy},
    huffman::{Codes, Table},
};

/// Maximum number of scans of a progressive image: the limit of zune-jpeg.
const MAX_SCANS: usize = 100;

/// Reads all scans of `file` and fails if the image is not complete.
///
/// A progressive image is complete if each scan is whole and each component has its DC values. The standard
/// allows the later scans to be left out, which costs detail.
///
/// # Errors
/// Returns a [`JpegError`] that depends on the bytes of the file only, not on the crop, also for a frame of
/// more than `max_pixels`.
pub(crate) fn check(file: &[u8], max_pixels: u64) -> Result<(), JpegError> {
    let mut codes = Codes::default();
    let mut frame = None;
    let mut restart = 0;
    let mut scans = 0;
    let mut entropy = Entropy::default();
    let mut offset = 2;
    loop {
        let marker = next_marker(file, &mut offset).ok_or(JpegError::Truncated)?;
        if marker == END_OF_IMAGE {
            let has_all = frame.is_some_and(|frame: Frame| frame.components.iter().all(|one| one.has_dc));
            return if has_all { Ok(()) } else { Err(JpegError::Truncated) };
        }
        let segment = segment(file, &mut offset)?;
        match marker {
            0xC0..=0xC2 => {
                frame = Some(Frame::read(marker == 0xC2, segment, max_pixels).ok_or(JpegError::FrameHeader)?);
            }
            0xC4 => codes.read(segment).ok_or(JpegError::HuffmanCode)?,
            0xDD => {
                restart = usize::from(u16::from_be_bytes(*segment.first_chunk().ok_or(JpegError::Truncated)?))
            }
            0xE0 if segment.starts_with(b"AVI1\0") => {
                codes.read(MOTION_JPEG_CODES).ok_or(JpegError::HuffmanCode)?
            }
            0xDA => {
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(JpegError::TooManyScans);
                }
                let frame = frame.as_mut().ok_or(JpegError::ScanWithoutFrame)?;
                let (end, length) = entropy.read(&file[offset..]).ok_or(JpegError::Truncated)?;
                offset += length;
                let scan = Scan::read(segment, frame, &codes)?;
                let mut bits = Bits::new(&entropy);
                if scan.read_all_blocks(frame, restart, &mut bits).is_none() {
                    return Err(match end {
                        _ if !bits.is_at_end() => JpegError::HuffmanCode,
                        END_OF_IMAGE => JpegError::Truncated,
                        _ => JpegError::ShortScan,
                    });
                }
                if !frame.progressive && scan.parts.len() == frame.components.len() {
                    // zune-jpeg ignores the bytes that follow.
                    return Ok(());
                }
            }
            _ => {}
        }
    }
}

/// Returns the next marker that has a segment or ends the image, and moves `offset` after it. Skips stray
/// bytes and padding before the marker. Returns `None` if the file ends before a marker.
fn next_marker(file: &[u8], offset: &mut usize) -> Option<u8> {
    loop {
        *offset += memchr::memchr(0xFF, file.get(*offset..)?)?;
        match *file.get(*offset + 1)? {
            0xFF => *offset += 1,
            0x00 | 0x01 | 0xD0..=0xD8 => *offset += 2,
            marker => {
                *offset += 2;
                return Some(marker);
            }
        }
    }
}

/// Returns the segment at `offset`, without its length field, and moves `offset` after it.
fn segment<'a>(file: &'a [u8], offset: &mut usize) -> Result<&'a [u8], JpegError> {
    let rest = &file[*offset..];
    let length = usize::from(u16::from_be_bytes(*rest.first_chunk().ok_or(JpegError::Truncated)?));
    *offset += length;
    if length < 2 {
        return Err(JpegError::SegmentLength);
    }
    rest.get(2..length).ok_or(JpegError::Truncated)
}

struct Frame {
    size: Size,
    progressive: bool,
    components: Vec<Component>,
    /// Maximum number of blocks of a component in a group (MCU), across and down.
    across: usize,
    down: usize,
}

struct Component {
    id: u8,
    /// Number of blocks of this component in a group, across and down.
    across: usize,
    down: usize,
    has_dc: bool,
    /// For each block, a bit for each value; it is set if a progressive scan has made that AC value other
    /// than 0. Empty before the first AC scan.
    nonzero: Vec<u64>,
}

impl Frame {
    fn read(progressive: bool, segment: &[u8], max_pixels: u64) -> Option<Self> {
        let &[_, height_1, height_2, width_1, width_2, count, ref components @ ..] = segment else {
            return None;
        };
        let (width, height) = ([width_1, width_2], [height_1, height_2]);
        let size = Size::new(u16::from_be_bytes(width).into(), u16::from_be_bytes(height).into());
        let components: Vec<_> = components.as_chunks().0.iter().map(Component::read).collect();
        let across = components.iter().map(|component| component.across).max()?;
        let down = components.iter().map(|component| component.down).max()?;
        let sane = components.iter().all(|one| (1..=4).contains(&one.across) && (1..=4).contains(&one.down));
        (sane && components.len() == usize::from(count) && size.pixels() <= max_pixels).then_some(Self {
            size,
            progressive,
            components,
            across,
            down,
        })
    }

    /// Returns the number of columns and rows of groups.
    fn groups(&self) -> (usize, usize) {
        let Size { width, height } = self.size;
        ((width as usize).div_ceil(self.across * 8), (height as usize).div_ceil(self.down * 8))
    }

    /// Returns the number of columns and rows of blocks in a scan of `component` alone.
    fn blocks(&self, component: &Component) -> (usize, usize) {
        let Size { width, height } = self.size;
        (
            (width as usize * component.across).div_ceil(self.across * 8),
            (height as usize * component.down).div_ceil(self.down * 8),
        )
    }
}

impl Component {
    fn read(&[id, sampling, _]: &[u8; 3]) -> Self {
        let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
        Self { id, across, down, has_dc: false, nonzero: Vec::new() }
    }
}

/// The part of each block that a scan contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// All values.
    All,
    /// The upper bits of the DC value.
    FirstDc,
    /// One more bit of the DC value.
    MoreDc,
    /// The upper bits of the AC values.
    FirstAc,
    /// One more bit of the AC values.
    MoreAc,
}

struct Scan {
    content: Content,
    /// First and last value of each block, in zigzag order.
    first: usize,
    last: usize,
    parts: Vec<Part>,
}

/// A component of a scan.
struct Part {
    /// Index in `Frame::components`.
    component: usize,
    dc: Table,
    ac: Table,
}

impl Scan {
    fn read(segment: &[u8], frame: &Frame, codes: &Codes<'_>) -> Result<Self, JpegError> {
        const INVALID: JpegError = JpegError::ScanHeader;
        let (&count, rest) = segment.split_first().ok_or(INVALID)?;
        let (parts, spectrum) = rest.split_at_checked(usize::from(count) * 2).ok_or(INVALID)?;
        let &[first, last, bits] = spectrum else { return Err(INVALID) };
        let content = match (frame.progressive, first, bits >> 4) {
            (false, ..) => Content::All,
            (true, 0, 0) => Content::FirstDc,
            (true, 0, _) => Content::MoreDc,
            (true, _, 0) => Content::FirstAc,
            (true, ..) => Content::MoreAc,
        };
        let has_ac = matches!(content, Content::FirstAc | Content::MoreAc);
        if parts.is_empty() || last > 63 || has_ac && (count != 1 || first > last) {
            return Err(INVALID);
        }
        let mut scan = Self { content, first: first.into(), last: last.into(), parts: Vec::new() };
        for &[id, codes_of_part] in parts.as_chunks().0 {
            let component =
                frame.components.iter().position(|component| component.id == id).ok_or(INVALID)?;
            let mut part = Part { component, dc: Table::default(), ac: Table::default() };
            let code = |of: &[_; 4], number: u8| of.get(usize::from(number)).copied().flatten();
            let (dc, ac) = (code(&codes.dc, codes_of_part >> 4), code(&codes.ac, codes_of_part & 15));
            if matches!(content, Content::All | Content::FirstDc) {
                dc.and_then(|code| part.dc.build_dc(code)).ok_or(JpegError::HuffmanCode)?;
            }
            if has_ac {
                ac.and_then(|code| part.ac.build_progressive_ac(code)).ok_or(JpegError::HuffmanCode)?;
            } else if content == Content::All {
                ac.and_then(|code| part.ac.build_ac(code)).ok_or(JpegError::HuffmanCode)?;
            }
            scan.parts.push(part);
        }
        Ok(scan)
    }

    /// Reads all blocks and keeps no values. Returns `None` if a code is missing or invalid.
    fn read_all_blocks(&self, frame: &mut Frame, restart: usize, bits: &mut Bits<'_>) -> Option<()> {
        let alone = self.parts.len() == 1;
        let (columns, rows) = match self.parts.as_slice() {
            [part] => frame.blocks(&frame.components[part.component]),
            _ => frame.groups(),
        };
        if self.content == Content::FirstAc {
            frame.components[self.parts[0].component].nonzero.resize(columns * rows, 0);
        }
        let mut until_restart = restart;
        let mut ended = 0;
        for row in 0..rows {
            for column in 0..columns {
                if restart > 0 {
                    if until_restart == 0 {
                        bits.skip_to_restart()?;
                        (until_restart, ended) = (restart, 0);
                    }
                    until_restart -= 1;
                }
                for part in &self.parts {
                    let component = &mut frame.components[part.component];
                    component.has_dc |= !matches!(self.content, Content::FirstAc | Content::MoreAc);
                    let blocks = if alone { 1 } else { component.across * component.down };
                    for _ in 0..blocks {
                        match self.content {
                            Content::All => bits.block(&part.dc, &part.ac, &mut 0, None).map(drop)?,
                            Content::FirstDc => bits.symbol(&part.dc).map(drop)?,
                            Content::MoreDc => bits.skip(1),
                            Content::FirstAc | Content::MoreAc => {
                                // `nonzero` is empty if no first AC scan came before.
                                let block = component.nonzero.get_mut(row * columns + column)?;
                                self.ac(bits, &part.ac, block, &mut ended)?;
                            }
                        }
                    }
                }
            }
            bits.check()?;
        }
        Some(())
    }

    /// Reads the AC values of a block. `ended` is the number of blocks, counted from this one on, that have
    /// no more codes. Returns `None` if a code is missing or invalid.
    fn ac(&self, bits: &mut Bits<'_>, table: &Table, nonzero: &mut u64, ended: &mut u64) -> Option<()> {
        let mut position = self.first;
        while *ended == 0 && position <= self.last {
            let (entry, window) = bits.symbol(table)?;
            if entry.is_end() {
                *ended = (1 << entry.size()) + entry.bits(window);
                break;
            }
            position = self.skip_zeros(bits, position, entry.run(), *nonzero);
            if entry.size() > 0 {
                // The run of zeros goes beyond the end of the block.
                if position > self.last {
                    return None;
                }
                *nonzero |= 1 << position;
            }
            position += 1;
        }
        if *ended > 0 {
            self.skip_zeros(bits, position, usize::MAX, *nonzero);
            *ended -= 1;
        }
        Some(())
    }

    /// Skips `zeros` values that are 0, starting at `position`. In a [`Content::MoreAc`] scan, also skips the
    /// values between them that are not 0, and reads the one bit that each of these has. Returns the position
    /// of the value after them.
    fn skip_zeros(&self, bits: &mut Bits<'_>, mut position: usize, mut zeros: usize, nonzero: u64) -> usize {
        if self.content == Content::FirstAc {
            return position.saturating_add(zeros);
        }
        while position <= self.last {
            if nonzero >> position & 1 == 1 {
                bits.skip(1);
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            position += 1;
        }
        position
    }
}

/// The Huffman codes of annex K of the standard as a DHT segment, which frames of Motion JPEG leave out.
const MOTION_JPEG_CODES: &[u8] = &[
    0, 0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 0, 3, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 0, 2, 1, 3, 3, 2, 4, 3, 5,
    5, 4, 4, 0, 0, 1, 125, 1, 2, 3, 0, 4, 17, 5, 18, 33, 49, 65, 6, 19, 81, 97, 7, 34, 113, 20, 50, 129, 145,
    161, 8, 35, 66, 177, 193, 21, 82, 209, 240, 36, 51, 98, 114, 130, 9, 10, 22, 23, 24, 25, 26, 37, 38, 39,
    40, 41, 42, 52, 53, 54, 55, 56, 57, 58, 67, 68, 69, 70, 71, 72, 73, 74, 83, 84, 85, 86, 87, 88, 89, 90,
    99, 100, 101, 102, 103, 104, 105, 106, 115, 116, 117, 118, 119, 120, 121, 122, 131, 132, 133, 134, 135,
    136, 137, 138, 146, 147, 148, 149, 150, 151, 152, 153, 154, 162, 163, 164, 165, 166, 167, 168, 169, 170,
    178, 179, 180, 181, 182, 183, 184, 185, 186, 194, 195, 196, 197, 198, 199, 200, 201, 202, 210, 211, 212,
    213, 214, 215, 216, 217, 218, 225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 241, 242, 243, 244, 245,
    246, 247, 248, 249, 250, 17, 0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 119, 0, 1, 2, 3, 17, 4, 5, 33,
    49, 6, 18, 65, 81, 7, 97, 113, 19, 34, 50, 129, 8, 20, 66, 145, 161, 177, 193, 9, 35, 51, 82, 240, 21,
    98, 114, 209, 10, 22, 36, 52, 225, 37, 241, 23, 24, 25, 26, 38, 39, 40, 41, 42, 53, 54, 55, 56, 57, 58,
    67, 68, 69, 70, 71, 72, 73, 74, 83, 84, 85, 86, 87, 88, 89, 90, 99, 100, 101, 102, 103, 104, 105, 106,
    115, 116, 117, 118, 119, 120, 121, 122, 130, 131, 132, 133, 134, 135, 136, 137, 138, 146, 147, 148, 149,
    150, 151, 152, 153, 154, 162, 163, 164, 165, 166, 167, 168, 169, 170, 178, 179, 180, 181, 182, 183, 184,
    185, 186, 194, 195, 196, 197, 198, 199, 200, 201, 202, 210, 211, 212, 213, 214, 215, 216, 217, 218, 226,
    227, 228, 229, 230, 231, 232, 233, 234, 242, 243, 244, 245, 246, 247, 248, 249, 250,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &[u8]) -> Result<(), JpegError> {
        super::check(file, u64::MAX)
    }

    const BASELINE: &[u8] = include_bytes!("../../tests/image_folder/fixtures/baseline.jpg");

    #[test]
    fn the_end_of_a_thumbnail_does_not_end_the_image() {
        let metadata = [0xFF, 0xE1, 0, 6, 0xFF, 0xD8, 0xFF, 0xD9];
        let with_thumbnail = [&BASELINE[..2], &metadata, &BASELINE[2..]].concat();
        assert_eq!(check(&with_thumbnail), Ok(()));
        assert_eq!(check(&with_thumbnail[..with_thumbnail.len() - 2]), Err(JpegError::Truncated));
        assert_eq!(check(&with_thumbnail[..10]), Err(JpegError::Truncated));
        assert_eq!(check(&with_thumbnail[..7]), Err(JpegError::Truncated));
    }

    #[test]
    fn padding_and_bytes_after_the_end_are_ignored() {
        let padded = [&BASELINE[..2], &[0, 0, 0xFF, 0xFF], &BASELINE[2..], &[0; 40]].concat();
        assert_eq!(check(&padded), Ok(()));
        assert_eq!(check(&[0xFF, 0xD8]), Err(JpegError::Truncated));
        assert_eq!(check(&[0xFF, 0xD8, 0xFF]), Err(JpegError::Truncated));
    }

    /// Returns the range of the segment with the marker `wanted`.
    fn segment_of(file: &[u8], wanted: u8) -> std::ops::Range<usize> {
        let mut offset = 2;
        loop {
            let marker = next_marker(file, &mut offset).unwrap();
            let start = offset - 2;
            segment(file, &mut offset).unwrap();
            if marker == wanted {
                return start..offset;
            }
        }
    }

    #[test]
    fn a_motion_jpeg_frame_needs_no_codes_of_its_own() {
        let mut frame = BASELINE.to_vec();
        while frame.windows(2).any(|pair| pair == [0xFF, 0xC4]) {
            frame.drain(segment_of(&frame, 0xC4));
        }
        assert_eq!(check(&frame), Err(JpegError::HuffmanCode));
        frame.splice(2..2, *b"\xFF\xE0\0\x07AVI1\0");
        assert_eq!(check(&frame), Ok(()));
        frame.drain(frame.len() - 50..frame.len() - 2);
        assert_eq!(check(&frame), Err(JpegError::Truncated));
    }
}
