//! Reads the headers of a JPEG: everything before the coded pixels.

use crate::{area::Size, huffman::Codes};

/// The headers of a JPEG that this decoder handles.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    pub(crate) size: Size,
    components: [Component; 3],
    count: usize,
    /// Number of blocks of the first component in a group (MCU), across and down: 1 x 1, 2 x 1 or 2 x 2. The
    /// other components have one block in a group.
    pub(crate) across: usize,
    pub(crate) down: usize,
    /// Each is `None` until the file has defined it.
    quantisers: [Option<[i32; 64]>; 4],
    pub(crate) codes: Codes<'a>,
    /// Number of groups from one restart marker to the next; 0 without restart markers.
    pub(crate) restart: usize,
    /// Byte of the file at which the coded pixels start.
    pub(crate) scan: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Component {
    id: u8,
    pub(crate) across: usize,
    pub(crate) down: usize,
    /// Number of the quantisation table.
    table: usize,
    /// That table, in zigzag order, as in the file. [`Header::read`] fails if the file does not define it.
    pub(crate) quantiser: [i32; 64],
    /// Number of the Huffman code for DC.
    pub(crate) dc: usize,
    /// Number of the Huffman code for AC.
    pub(crate) ac: usize,
}

impl Component {
    const UNKNOWN: Self = Self { id: 0, across: 1, down: 1, table: 0, quantiser: [0; 64], dc: 0, ac: 0 };
}

impl<'a> Header<'a> {
    /// Reads the headers. Returns `None` if the file ends too early, or if this decoder does not handle it.
    pub(crate) fn read(file: &'a [u8]) -> Option<Self> {
        let mut header = Self {
            size: Size::default(),
            components: [Component::UNKNOWN; 3],
            count: 0,
            across: 1,
            down: 1,
            quantisers: [None; 4],
            codes: Codes::default(),
            restart: 0,
            scan: 0,
        };
        let mut offset = 2;
        loop {
            let (&[0xFF, marker], rest) = file.get(offset..)?.split_first_chunk()? else { return None };
            if marker == 0xFF {
                offset += 1; // padding
                continue;
            }
            let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            let segment = rest.get(2..length)?;
            offset += 2 + length;
            match marker {
                0xC0 | 0xC1 => header.frame(segment)?,
                0xC4 => header.codes.read(segment)?,
                0xDB => header.quantisers(segment)?,
                0xDD => {
                    let &[high, low] = segment else { return None };
                    header.restart = u16::from_be_bytes([high, low]).into();
                }
                0xDA => {
                    header.start_of_scan(segment)?;
                    header.scan = offset;
                    return Some(header);
                }
                // A segment of Adobe, which may declare colours other than YCbCr.
                0xEE => return None,
                0xE0..=0xEF | 0xFE => {}
                _ => return None,
            }
        }
    }

    pub(crate) fn components(&self) -> impl Iterator<Item = &Component> {
        self.components[..self.count].iter()
    }

    pub(crate) fn is_grey(&self) -> bool {
        self.count == 1
    }

    fn frame(&mut self, segment: &[u8]) -> Option<()> {
        let &[8, height_1, height_2, width_1, width_2, count, ref components @ ..] = segment else {
            return None;
        };
        self.count = match (self.count, count) {
            (0, 1 | 3) if components.len() == usize::from(count) * 3 => count.into(),
            _ => return None,
        };
        let (width, height) = ([width_1, width_2], [height_1, height_2]);
        self.size = Size::new(u16::from_be_bytes(width).into(), u16::from_be_bytes(height).into());
        if self.size.pixels() == 0 {
            return None;
        }
        for (component, &[id, sampling, table]) in self.components.iter_mut().zip(components.as_chunks().0) {
            let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            *component = Component { id, across, down, table: table.into(), ..Component::UNKNOWN };
        }
        match &mut self.components[..self.count] {
            // The blocks of a single component follow each other whatever its sampling factors are. Factors
            // that zune-jpeg refuses are refused here too.
            [grey] if matches!((grey.across, grey.down), (1 | 2 | 4, 1..=4)) => {
                (grey.across, grey.down) = (1, 1)
            }
            [luma, blue, red] => {
                // In other files the component numbers may be the letters R, G and B, which mean RGB.
                let known = matches!([luma.id, blue.id, red.id], [1, 2, 3] | [0, 1, 2]);
                let small = [blue, red].iter().all(|chroma| (chroma.across, chroma.down) == (1, 1));
                if !known || !small || !matches!((luma.across, luma.down), (1, 1) | (2, 1) | (2, 2)) {
                    return None;
                }
                (self.across, self.down) = (luma.across, luma.down);
            }
            _ => return None,
        }
        Some(())
    }

    fn quantisers(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            // The upper four bits of `kind` are 0 for 8-bit values, the only width that baseline allows.
            let quantiser = self.quantisers.get_mut(usize::from(kind))?;
            let (values, rest) = rest.split_first_chunk::<64>()?;
            *quantiser = Some(values.map(i32::from));
            segment = rest;
        }
        Some(())
    }

    fn start_of_scan(&mut self, segment: &[u8]) -> Option<()> {
        let (&count, rest) = segment.split_first()?;
        let (components, spectrum) = rest.split_at_checked(self.count * 2)?;
        if self.count == 0 || usize::from(count) != self.count || !matches!(spectrum, [0, 63, 0]) {
            return None;
        }
        for (component, &[id, codes]) in self.components.iter_mut().zip(components.as_chunks().0) {
            if component.id != id || codes >> 4 > 3 || codes & 15 > 3 {
                return None;
            }
            (component.dc, component.ac) = (usize::from(codes >> 4), usize::from(codes & 15));
            component.quantiser = (*self.quantisers.get(component.table)?)?;
        }
        Some(())
    }
}
