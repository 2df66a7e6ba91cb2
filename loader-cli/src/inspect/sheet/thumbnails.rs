//! The images of records.

use loader_core::{SampleContext, Tensor};
use loader_data::{Record, Transform, Value};

use super::RGB;

/// Width and height of the image of a record, in pixels.
const SIZE: u32 = 160;

/// Returns the first image of a record. Decodes, resizes and crops an encoded image; returns a tensor of
/// shape `[3, height, width]` unchanged.
pub(crate) fn thumbnail(record: Record, cx: &mut SampleContext) -> anyhow::Result<Tensor<u8>> {
    let image = first_image(&record).ok_or_else(|| anyhow::anyhow!("no field of the record has an image"))?;
    let transform = Transform::new().resize(SIZE).center_crop(SIZE, SIZE);
    match image {
        Image::Encoded(bytes) => Ok(transform.decode(bytes, cx.rng())?),
        Image::Pixels(pixels) => Ok(pixels),
    }
}

enum Image<'a> {
    Encoded(&'a [u8]),
    Pixels(Tensor<u8>),
}

fn first_image(record: &Record) -> Option<Image<'_>> {
    const JPEG: &[u8] = b"\xFF\xD8\xFF";
    const PNG: &[u8] = b"\x89PNG";
    record.iter().find_map(|(_, value)| match value {
        Value::Bytes(bytes) if bytes.starts_with(JPEG) || bytes.starts_with(PNG) => {
            Some(Image::Encoded(bytes))
        }
        Value::Tensor(tensor) => match tensor.shape() {
            &[RGB, height, width] if height > 0 && width > 0 => {
                tensor.clone().downcast().ok().map(Image::Pixels)
            }
            _ => None,
        },
        Value::Record(inner) => first_image(inner),
        _ => None,
    })
}
