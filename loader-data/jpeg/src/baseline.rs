//! Decodes the part of a baseline JPEG that a crop needs.
//!
//! A decoder must read the coded blocks of a JPEG in order, but only the blocks in the crop must become
//! pixels. For the other blocks this decoder reads the lengths of the codes and does not compute their
//! values. It does all other work (inverse transform, chroma, colours) for the crop only. It computes exactly
//! the same pixels as zune-jpeg; the tests check that.
//!
//! The decoder reads the blocks below the crop too, although no later block needs them, so that whether a
//! file loads does not depend on the crop. Alternative considered: to stop below the crop. Rejected because
//! the outcome of a damaged file would depend on the random crop, and a truncated file would load without an
//! error.
//!
//! This module handles the kind of file that nearly all photographs are: 8 bits, Huffman codes, one scan,
//! grey or YCbCr with chroma of full or half size. For every other file, and for every damaged file, its
//! functions return `None`; zune-jpeg then decodes or refuses the file.

use pulp::{Simd, WithSimd};

use crate::{
    CHANNELS,
    area::{Area, Size},
    blocks::{self, Block},
    colour,
    entropy::{Bits, Entropy},
    header::Header,
    huffman::Tables,
};

/// The marker that ends an image.
pub(crate) const END_OF_IMAGE: u8 = 0xD9;

/// A file that this decoder handles, whose headers have been read.
#[derive(Debug)]
pub(crate) struct Baseline<'a> {
    header: Header<'a>,
    file: &'a [u8],
}

/// Buffers of the decoder. A thread that decodes many images should keep one value and use it for all of
/// them. The buffers grow to the size of the largest coded file and the largest decoded area, until they are
/// [released](Self::release).
#[derive(Debug, Default)]
pub struct Buffers {
    tables: Tables,
    entropy: Entropy,
    planes: [Plane; 3],
    colours: colour::ChromaRows,
}

impl Buffers {
    /// Frees the buffers if one of them is larger than `kept` bytes.
    pub fn release(&mut self, kept: usize) {
        if self.entropy.capacity() > kept || self.planes.iter().any(|plane| plane.bytes.capacity() > kept) {
            *self = Self::default();
        }
    }
}

/// The decoded part of one component, in whole blocks.
#[derive(Debug, Default)]
pub(crate) struct Plane {
    pub(crate) bytes: Vec<u8>,
    pub(crate) width: usize,
}

/// The groups of blocks (MCUs) that a crop needs, in one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    end: usize,
    /// Number of groups in the whole image.
    all: usize,
}

impl Span {
    /// Returns the groups of `side` pixels that `length` pixels from `start` on need. The image has `whole`.
    fn new(start: u32, length: u32, whole: u32, side: usize) -> Self {
        // Chroma of half size is interpolated, so a pixel needs the chroma of its neighbours too.
        const NEIGHBOURS: usize = 2;
        let all = (whole as usize).div_ceil(side);
        let (first, last) = (start as usize, (start + length) as usize);
        let margin = if side > 8 { NEIGHBOURS } else { 0 };
        let start = first.saturating_sub(margin) / side;
        Self { start, end: (last + margin).div_ceil(side).min(all), all }
    }

    fn len(self) -> usize {
        self.end - self.start
    }

    fn contains(self, group: usize) -> bool {
        (self.start..self.end).contains(&group)
    }
}

impl<'a> Baseline<'a> {
    /// Reads the headers. Returns `None` if this decoder does not handle the file.
    pub(crate) fn open(file: &'a [u8]) -> Option<Self> {
        Some(Self { header: Header::read(file)?, file })
    }

    pub(crate) fn size(&self) -> Size {
        self.header.size
    }

    /// Decodes `area`, which has pixels and is inside the image, into `pixels`, in place of the previous
    /// image. Returns `None` if the file is damaged.
    pub(crate) fn decode(&self, area: Area, pixels: &mut Vec<u8>, buffers: &mut Buffers) -> Option<()> {
        buffers.tables.build(&self.header)?;
        let (marker, _) = buffers.entropy.read(&self.file[self.header.scan..])?;
        if marker != END_OF_IMAGE {
            return None;
        }
        pulp::Arch::new().dispatch(Job { jpeg: self, area, pixels, buffers })
    }
}

/// The work that pulp compiles once for each SIMD instruction set and runs with the best one that the
/// processor has. Every function that it calls must be `inline(always)`: a function that is not inlined is
/// compiled for the basic instruction set only.
struct Job<'a> {
    jpeg: &'a Baseline<'a>,
    area: Area,
    pixels: &'a mut Vec<u8>,
    buffers: &'a mut Buffers,
}

impl WithSimd for Job<'_> {
    type Output = Option<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<()> {
        let Self { jpeg, area, pixels, buffers } = self;
        let Buffers { tables, entropy, planes, colours } = buffers;
        let spans = jpeg.decode_planes(area, tables, entropy, planes)?;
        pixels.resize(area.size.pixels() as usize * CHANNELS, 0);
        colours.write(&jpeg.header, area, spans, planes, pixels);
        Some(())
    }
}

impl Baseline<'_> {
    /// Decodes the groups that `area` needs into `planes`. Returns the columns and rows of these groups.
    #[inline(always)]
    fn decode_planes(
        &self,
        area: Area,
        tables: &Tables,
        entropy: &Entropy,
        planes: &mut [Plane; 3],
    ) -> Option<(Span, Span)> {
        let header = &self.header;
        let (across, down) = (header.across, header.down);
        let columns = Span::new(area.x, area.size.width, header.size.width, across * 8);
        let rows = Span::new(area.y, area.size.height, header.size.height, down * 8);
        for (plane, component) in planes.iter_mut().zip(header.components()) {
            plane.width = columns.len() * component.across * 8;
            plane.bytes.resize(plane.width * rows.len() * component.down * 8, 0);
        }

        let mut bits = Bits::new(entropy);
        let mut before = [0; 3];
        let mut block: Block = [0; 64];
        let mut until_restart = header.restart;
        for row in 0..rows.all {
            for column in 0..columns.all {
                if header.restart > 0 {
                    if until_restart == 0 {
                        bits.restart()?;
                        before = [0; 3];
                        until_restart = header.restart;
                    }
                    until_restart -= 1;
                }
                let needed = rows.contains(row) && columns.contains(column);
                for (number, component) in header.components().enumerate() {
                    let (dc, ac) = tables.of(component);
                    let before = &mut before[number];
                    for part in 0..component.across * component.down {
                        if !needed {
                            bits.block(dc, ac, before, None)?;
                            continue;
                        }
                        let kept = (&component.quantiser, &mut block);
                        let last = bits.block(dc, ac, before, Some(kept))?;
                        let plane = &mut planes[number];
                        let (x, y) = (part % component.across, part / component.across);
                        let x = ((column - columns.start) * component.across + x) * 8;
                        let y = ((row - rows.start) * component.down + y) * 8;
                        let offset = y * plane.width + x;
                        blocks::write(&mut block, last, &mut plane.bytes[offset..], plane.width);
                    }
                }
            }
            bits.check()?;
        }
        Some((columns, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_and_decode_whole;

    const PHOTOS: [(&str, &[u8]); 8] = [
        ("4:2:0", include_bytes!("../../photos/table/coffee.jpg")),
        ("4:2:0, even finer detail", include_bytes!("../../photos/texture/grass.jpg")),
        ("grey", include_bytes!("../../photos/texture/brick.jpg")),
        ("4:2:0, two groups wide", include_bytes!("../../tests/image_folder/fixtures/baseline.jpg")),
        ("4:2:2", include_bytes!("../../tests/image_folder/fixtures/half-width-chroma.jpg")),
        ("4:4:4", include_bytes!("../../tests/image_folder/fixtures/full-chroma.jpg")),
        ("restart markers", include_bytes!("../../tests/image_folder/fixtures/restarts.jpg")),
        ("codes made for the file", include_bytes!("../../tests/image_folder/fixtures/own-codes.jpg")),
    ];

    fn decode(file: &[u8], area: Area, buffers: &mut Buffers) -> Option<Vec<u8>> {
        let mut pixels = Vec::new();
        Baseline::open(file)?.decode(area, &mut pixels, buffers)?;
        Some(pixels)
    }

    #[test]
    fn pixels_are_the_same_as_from_zune_jpeg() {
        let buffers = &mut Buffers::default();
        for (kind, file) in PHOTOS {
            let (Size { width, height }, expected) = open_and_decode_whole(file).unwrap();
            let bytes_of_row = width as usize * CHANNELS;
            let (half_width, half_height) = (width / 2, height / 2);
            for (x, y, width, height) in [
                (0, 0, width, height),
                (0, 0, 1, 1),
                (width - 1, height - 1, 1, 1),
                (15, 15, 3, 3),
                (16, 8, 9, 17),
                (half_width, 0, width - half_width, half_height),
                (0, half_height, half_width, height - half_height),
                (half_width - 7, half_height - 7, 14, 14),
            ] {
                let area = Area::new(x, y, Size::new(width, height));
                let found = decode(file, area, buffers).expect(kind);
                assert_eq!(found.len(), area.size.pixels() as usize * CHANNELS, "{kind}");
                let expected = expected.chunks_exact(bytes_of_row).skip(y as usize);
                let rows = found.chunks_exact(width as usize * CHANNELS);
                for (y, (found, expected)) in rows.zip(expected).enumerate() {
                    let expected = &expected[x as usize * CHANNELS..][..width as usize * CHANNELS];
                    assert!(found == expected, "{kind}, {area:?}, row {y}");
                }
            }
        }
    }

    #[test]
    fn a_damaged_file_fails_for_any_area() {
        let (_, file) = PHOTOS[0];
        let mut damaged = file.to_vec();
        let middle = damaged.len() / 2;
        // No Huffman code consists of ones only. The zero bytes keep the ones from being a marker.
        damaged[middle..middle + 64].as_chunks_mut().0.fill([0xFF, 0x00]);
        let short = [&file[..file.len() - 100], &[0xFF, END_OF_IMAGE]].concat();
        let buffers = &mut Buffers::default();
        for area in [Area::new(100, 20, Size::new(90, 80)), Area::new(100, 300, Size::new(90, 80))] {
            assert!(decode(file, area, buffers).is_some());
            assert!(decode(&damaged, area, buffers).is_none());
            assert!(decode(&short, area, buffers).is_none());
        }
    }

    #[test]
    fn a_cut_file_fails() {
        let (_, file) = PHOTOS[3];
        let buffers = &mut Buffers::default();
        for length in 0..file.len() - 2 {
            for end in [&[][..], &[0xFF, END_OF_IMAGE]] {
                let cut = [&file[..length], end].concat();
                let area = Area::new(0, 0, Size::new(1, 1));
                assert!(decode(&cut, area, buffers).is_none(), "cut at {length}");
            }
        }
    }

    /// Flips every third bit, one at a time. A file that still loads must load with zune-jpeg too, in its
    /// strict mode, with the same pixels, and for any area.
    #[test]
    fn a_damaged_file_loads_as_with_zune_jpeg_or_fails() {
        let (_, file) = PHOTOS[3];
        let buffers = &mut Buffers::default();
        let (mut loaded, mut failed) = (0, 0);
        // Leaves out the first two bytes, which identify the format and are checked elsewhere.
        for flip in (16..file.len() * 8).step_by(3) {
            let mut damaged = file.to_vec();
            damaged[flip / 8] ^= 1 << (flip % 8);
            let Some(jpeg) = Baseline::open(&damaged).filter(|jpeg| jpeg.size().pixels() < 1 << 16) else {
                continue;
            };
            let corner = decode(&damaged, Area::new(0, 0, Size::new(1, 1)), buffers);
            let found = decode(&damaged, Area::new(0, 0, jpeg.size()), buffers);
            assert_eq!(corner.is_some(), found.is_some(), "bit {flip}");
            let Some(found) = found else {
                failed += 1;
                continue;
            };
            loaded += 1;
            let whole = open_and_decode_whole(&damaged);
            let (_, expected) = whole.unwrap_or_else(|error| panic!("bit {flip}: zune-jpeg: {error}"));
            assert!(found == expected, "bit {flip}");
        }
        assert!(loaded > 1000 && failed > 100, "{loaded} loaded, {failed} failed");
    }
}
