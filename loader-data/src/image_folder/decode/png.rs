//! Decodes PNG files with the `png` crate.

use std::io::{self, Cursor};

use png::{Decoder, DecodingError, Transformations};

use super::{super::error::ImageProblem, Picture, make_room};

const FORMAT: &str = "PNG";

pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    // Turns palettes into colours, and 1, 2, 4 and 16 bits into 8 bits.
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(problem)?;
    let (width, height) = reader.info().size();
    let channels = reader.output_color_type().0.samples();
    make_room(picture, width, height, channels)?;
    reader.next_frame(picture.bytes_mut()).map_err(problem)?;
    picture.make_rgb(channels);
    Ok(())
}

fn problem(error: DecodingError) -> ImageProblem {
    match error {
        DecodingError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageProblem::Truncated { format: FORMAT }
        }
        error => ImageProblem::Malformed { format: FORMAT, reason: error.to_string() },
    }
}
