//! Decodes images of the types that the feature `more-images` adds.

mod gif;
mod library;
mod netpbm;
mod tiff;

use super::{super::error::ImageProblem, Format, Orientation, Picture};

/// Decodes an image of a type other than JPEG and PNG.
pub(super) fn decode(
    format: Format,
    bytes: &[u8],
    picture: &mut Picture,
) -> Result<Orientation, ImageProblem> {
    match format {
        Format::Bmp => library::bmp(bytes, picture).map(|()| Orientation::default()),
        Format::Gif => gif::decode(bytes, picture).map(|()| Orientation::default()),
        Format::Netpbm => netpbm::decode(bytes, picture).map(|()| Orientation::default()),
        Format::Tiff => tiff::decode(bytes, picture),
        Format::WebP => library::webp(bytes, picture),
        Format::Jpeg | Format::Png => Err(ImageProblem::NotBuiltIn { format: format.name() }),
    }
}
