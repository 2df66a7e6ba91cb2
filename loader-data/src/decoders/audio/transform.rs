//! Decodes a file to a tensor.

use std::{
    io::Cursor,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use loader_core::{Phase, Tensor};
use rand::{Rng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};
use symphonia::core::io::MediaSource;

use super::{
    super::decode::{Decode, file, of_field},
    decode::{AudioFile, MAX_SAMPLE_RATE, check_bytes},
    resample::Resampler,
};
use crate::{
    error::{DataProblem, Result},
    record::{Record, Value},
};

/// Decodes WAV, FLAC, MP3 and Ogg Vorbis to samples at one rate. The result is a tensor of `f32` of shape
/// `[channels, frames]` with values from -1 to 1, as `torchaudio.load` returns.
///
/// The steps are: decode, mix the channels ([`mono`](Self::mono)), resample to the rate, and crop
/// ([`random_crop`](Self::random_crop) or [`center_crop`](Self::center_crop)). A step whose option is not set
/// is left out; resampling is left out if the file has the rate.
///
/// # Which files it reads
/// WAV with integers of 8 to 32 bits, floats, A-law or µ-law; FLAC; MP3; Vorbis in Ogg. The content decides,
/// not the name. Samples of 16 bits are divided by 32768, others likewise. Floats beyond 1 are kept. The
/// frames that an encoder of MP3 adds at both ends are cut off if the file tells their number (LAME).
///
/// # Resampling
/// As `torchaudio.functional.resample` with its defaults: a sinc function in a Hann window, with 6 zero
/// crossings on each side and a roll-off of 0.99.
///
/// # Crops
/// Of a WAV or FLAC file only the frames of the crop are read and decoded. They are the same samples as in
/// the whole file. Other files are decoded from the beginning to the end, and so is a WAV that a program has
/// written to a pipe, because its header does not tell the number of frames.
///
/// A random crop draws from the sample's own generator, so that it does not depend on the number of workers.
/// Each file takes one number of 64 bits from the generator, with any options.
///
/// # Damaged files
/// A file that ends too early fails, and so does a damaged part that is decoded. Not noticed are: damage
/// outside of the crop of a WAV or FLAC file, flipped bits in WAV, MP3 and Ogg that give other valid samples,
/// damaged pages in the middle of an Ogg file, and a missing end of an MP3 without a LAME tag or of a WAV that
/// was written to a pipe.
///
/// # Examples
/// ```
/// use loader_core::SampleContext;
/// use loader_data::AudioTransform;
///
/// # std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/audio"))?;
/// let file = std::fs::read("s16.wav")?; // 900 frames of 2 channels, at 16 kHz
/// let transform = AudioTransform::new(8_000).mono().random_crop(256);
/// let audio = transform.decode(&file, SampleContext::new(7).rng())?;
/// assert_eq!(audio.shape(), [1, 256]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AudioTransform {
    sample_rate: u32,
    #[serde(default)]
    mono: bool,
    #[serde(default)]
    crop: Option<Crop>,
    #[serde(default = "max_sample_bytes", with = "loader_core::units::Size")]
    max_sample_bytes: u64,
}

/// Number of frames that are kept, and where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Crop {
    Random(u64),
    Center(u64),
}

/// Default of the maximum number of bytes of the samples of a file: 1 GiB, which is 4.6 hours of one channel at
/// 16 kHz.
fn max_sample_bytes() -> u64 {
    1 << 30
}

impl AudioTransform {
    /// Names of the keys.
    pub(crate) const KEYS: &[&str] = &["sample_rate", "mono", "crop", "max_sample_bytes"];

    /// Samples at `sample_rate` Hz, at most 768,000.
    pub fn new(sample_rate: u32) -> Self {
        Self { sample_rate, mono: false, crop: None, max_sample_bytes: max_sample_bytes() }
    }

    /// Replaces the channels by their mean. By default all channels are kept.
    #[must_use]
    pub fn mono(self) -> Self {
        Self { mono: true, ..self }
    }

    /// Keeps `frames` frames at a random position, after resampling. A shorter file gets zeros at its end.
    #[must_use]
    pub fn random_crop(self, frames: u64) -> Self {
        Self { crop: Some(Crop::Random(frames)), ..self }
    }

    /// Keeps the `frames` frames in the middle, after resampling. A shorter file gets zeros at its end.
    #[must_use]
    pub fn center_crop(self, frames: u64) -> Self {
        Self { crop: Some(Crop::Center(frames)), ..self }
    }

    /// Sets the maximum number of bytes of the samples that are decoded, as `f32`, and of the tensor. It keeps a
    /// file of a few bytes from taking all memory. The default is 1 GiB.
    #[must_use]
    pub fn max_sample_bytes(self, bytes: u64) -> Self {
        Self { max_sample_bytes: bytes, ..self }
    }

    /// Decodes the content of an audio file, for example a column of a Parquet file or a member of a tar
    /// archive.
    ///
    /// # Errors
    /// Returns [`DataProblem::InvalidOption`] if the sample rate or the crop is out of range,
    /// [`DataProblem::Unsupported`] for another format or codec, [`DataProblem::Truncated`] and
    /// [`DataProblem::Malformed`] for a damaged file, and [`DataProblem::TooLarge`].
    pub fn decode(&self, file: &[u8], rng: &mut impl Rng) -> Result<Tensor<f32>, DataProblem> {
        self.decode_source(Box::new(Cursor::new(file)), rng)
    }

    /// Checks the options, which may come from a config.
    pub(crate) fn validate(&self) -> Result<(), DataProblem> {
        let invalid = |option, reason| Err(DataProblem::InvalidOption { option, reason });
        if !(1..=MAX_SAMPLE_RATE).contains(&self.sample_rate) {
            let reason = format!("{} Hz is out of range; give 1 to {MAX_SAMPLE_RATE}", self.sample_rate);
            return invalid("sample_rate", reason);
        }
        match self.crop {
            Some(Crop::Random(0) | Crop::Center(0)) => invalid("crop", "give at least one frame".to_owned()),
            Some(Crop::Random(frames) | Crop::Center(frames)) => check_bytes(frames, self.max_sample_bytes),
            None => Ok(()),
        }
    }

    pub(crate) fn decode_source(
        &self,
        source: Box<dyn MediaSource + '_>,
        rng: &mut impl Rng,
    ) -> Result<Tensor<f32>, DataProblem> {
        self.validate()?;
        let draw = rng.next_u64();
        // With overflow checks, the library panics at some damaged headers. All that it has touched is
        // dropped.
        let decoded =
            catch_unwind(AssertUnwindSafe(|| Phase::Decode.measure(|| self.decode_drawn(source, draw))));
        decoded.unwrap_or_else(|_| {
            Err(DataProblem::Malformed { format: "audio", reason: "the decoder has panicked".to_owned() })
        })
    }

    /// Decodes a file. `draw` decides where a random crop is.
    fn decode_drawn(&self, source: Box<dyn MediaSource + '_>, draw: u64) -> Result<Tensor<f32>, DataProblem> {
        let file = AudioFile::open(source)?;
        let resampler = Resampler::new(file.rate, self.sample_rate);
        let (output, offset, channels) = if let Some(frames) = file.seekable_frames() {
            let output = self.crop_of(resampler.output_len(frames), draw);
            let input = resampler.input_of(&output, frames);
            (output, input.start, file.decode(Some(input), self.mono, self.max_sample_bytes)?)
        } else {
            let channels = file.decode(None, self.mono, self.max_sample_bytes)?;
            (self.crop_of(resampler.output_len(channels[0].len() as u64), draw), 0, channels)
        };
        let kept = output.end - output.start;
        let frames = self.crop.map_or(kept, |(Crop::Random(frames) | Crop::Center(frames))| frames);
        check_bytes(frames.saturating_mul(channels.len() as u64), self.max_sample_bytes)?;
        let frames = frames as usize;
        let mut tensor = Tensor::zeros([channels.len(), frames]).expect("the size was checked");
        let samples: &mut [f32] = tensor.as_mut_slice().expect("a new tensor has no clones");
        for (row, channel) in samples.chunks_exact_mut(frames.max(1)).zip(&channels) {
            resampler.run(channel, offset, output.start, &mut row[..kept as usize]);
        }
        Ok(tensor)
    }

    /// Returns the frames to keep of `frames` frames.
    fn crop_of(&self, frames: u64, draw: u64) -> Range<u64> {
        let (start, len) = match self.crop {
            None => (0, frames),
            Some(Crop::Center(len)) => (frames.saturating_sub(len) / 2, len),
            Some(Crop::Random(len)) => {
                let starts = u128::from(frames.saturating_sub(len)) + 1;
                (((u128::from(draw) * starts) >> 64) as u64, len)
            }
        };
        start..start.saturating_add(len).min(frames)
    }
}

impl Decode for AudioTransform {
    fn kind(&self) -> &'static str {
        "audio"
    }

    fn validate(&self) -> Result<(), DataProblem> {
        self.validate()
    }

    fn decode(&self, record: &mut Record, name: &str, rng: &mut ChaCha8Rng) -> Result<Value> {
        let kind = self.kind();
        of_field(record, kind, name, |value| Ok(self.decode(&file(kind, name, value)?, rng)?.into()))
    }
}
