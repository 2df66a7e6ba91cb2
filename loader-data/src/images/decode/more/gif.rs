//! Decodes the first frame of GIF files with the `gif` crate.

use std::io::{self, Cursor};

use gif::{ColorOutput, DecodeOptions, DecodingError};

use super::super::{super::error::ImageProblem, Format, Picture, Size, make_room};

pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(problem)?;
    let frame = decoder.next_frame_info().map_err(problem)?;
    let Some(frame) = frame.cloned() else {
        return Err(Format::Gif.malformed("it has no frame"));
    };
    // A frame that extends beyond the screen enlarges it.
    let right = u32::from(frame.left) + u32::from(frame.width);
    let bottom = u32::from(frame.top) + u32::from(frame.height);
    let size = Size::new(right.max(decoder.width().into()), bottom.max(decoder.height().into()));
    make_room(picture, size, 1)?;

    let mut indices = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut indices).map_err(problem)?;
    let palette = frame.palette.as_deref().or_else(|| decoder.global_palette()).unwrap_or_default();
    let (colours, _) = palette.as_chunks();
    // As Pillow, an index without a colour is grey, and the screen around the frame is transparent.
    let colour = |index: u8| *colours.get(usize::from(index)).unwrap_or(&[index; 3]);
    let around = frame.transparent.unwrap_or(0);
    picture.bytes_mut().as_chunks_mut().0.fill(colour(around));
    for (y, row) in indices.chunks_exact(usize::from(frame.width).max(1)).enumerate() {
        let pixels = picture.row_mut(frame.left.into(), u32::from(frame.top) + y as u32, frame.width.into());
        for (pixel, &index) in pixels.as_chunks_mut().0.iter_mut().zip(row) {
            *pixel = colour(index);
        }
    }
    Ok(())
}

fn problem(error: DecodingError) -> ImageProblem {
    match error {
        DecodingError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageProblem::Truncated { format: Format::Gif.name() }
        }
        error => Format::Gif.malformed(&error.to_string()),
    }
}
