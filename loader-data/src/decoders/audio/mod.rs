//! Decodes audio: `decode` reads samples from a file, `resample` changes their rate, and `transform` plans which part of
//! a file becomes the tensor.

mod decode;
mod resample;
mod transform;

pub use transform::AudioTransform;
