//! Decodes JPEG files. Our own decoder decodes the part of a baseline file that a crop needs; zune-jpeg
//! decodes all other files as a whole.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{
    super::error::ImageProblem,
    Area, Picture, Size, baseline,
    baseline::{Buffers, Defect},
    check, make_room,
};

const FORMAT: &str = "JPEG";

/// A JPEG file whose headers have been read.
pub(in super::super) struct Jpeg<'a> {
    file: &'a [u8],
    kind: Kind<'a>,
}

enum Kind<'a> {
    Baseline(Box<baseline::Jpeg<'a>>),
    Other(Box<Decoder<'a>>),
}

impl<'a> Jpeg<'a> {
    pub(super) fn open(file: &'a [u8]) -> Result<Self, ImageProblem> {
        let jpeg = match baseline::Jpeg::open(file) {
            Some(jpeg) => Self { file, kind: Kind::Baseline(Box::new(jpeg)) },
            None => Self { file, kind: Kind::Other(Box::new(headers(file)?)) },
        };
        check(jpeg.size())?;
        Ok(jpeg)
    }

    pub(super) fn size(&self) -> Size {
        match &self.kind {
            Kind::Baseline(jpeg) => jpeg.size(),
            Kind::Other(decoder) => {
                let (width, height) = decoder.dimensions().unwrap_or_default();
                // The casts keep the values: both have 16 bits in the file.
                Size::new(width as u32, height as u32)
            }
        }
    }

    /// Decodes at least `area` into `picture`. Whether this succeeds does not depend on `area`.
    pub(super) fn decode(
        self,
        area: Area,
        picture: &mut Picture,
        buffers: &mut Buffers,
    ) -> Result<(), ImageProblem> {
        let size = self.size();
        let decoder = match self.kind {
            Kind::Baseline(jpeg) => match jpeg.decode(area, picture, buffers) {
                Some(()) => return Ok(()),
                // zune-jpeg accepts more kinds of files, and its errors name the reason.
                None => Box::new(headers(self.file)?),
            },
            Kind::Other(decoder) => decoder,
        };
        baseline::check(self.file).map_err(problem)?;
        whole(decoder, size, picture)
    }
}

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn headers(file: &[u8]) -> Result<Decoder<'_>, ImageProblem> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| match baseline::check(file) {
        Err(Defect::Truncated) => problem(Defect::Truncated),
        _ => malformed(&error),
    })?;
    if decoder.dimensions().is_none() {
        return Err(malformed(&"no header"));
    }
    Ok(decoder)
}

fn whole(mut decoder: Box<Decoder<'_>>, size: Size, picture: &mut Picture) -> Result<(), ImageProblem> {
    make_room(picture, size.width, size.height, 3)?;
    // Without strict mode zune-jpeg fills the parts that it cannot decode with grey and returns no error. The
    // headers are read without strict mode, because stray bytes between them are harmless and do occur.
    decoder.set_options(decoder.options().set_strict_mode(true));
    decoder.decode_into(picture.bytes_mut()).map_err(|error| malformed(&error))
}

/// Decodes a whole file with zune-jpeg.
#[cfg(test)]
pub(super) fn decode_whole(file: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let jpeg = Jpeg { file, kind: Kind::Other(Box::new(headers(file)?)) };
    jpeg.decode(Area::default(), picture, &mut Buffers::default())
}

fn malformed(reason: &dyn ToString) -> ImageProblem {
    // zune-jpeg puts some of its messages in quotes.
    ImageProblem::Malformed { format: FORMAT, reason: reason.to_string().trim_matches('"').to_owned() }
}

fn problem(defect: Defect) -> ImageProblem {
    match defect {
        Defect::Truncated => ImageProblem::Truncated { format: FORMAT },
        Defect::Invalid(reason) => malformed(&reason),
    }
}
