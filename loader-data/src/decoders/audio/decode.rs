//! Decodes audio files with the crate `symphonia`.

use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::{Range, RangeInclusive},
};

use symphonia::{
    core::{
        audio::GenericAudioBufferRef,
        codecs::{
            CodecParameters,
            audio::{AudioDecoder, AudioDecoderOptions},
        },
        errors::Error,
        formats::{FormatOptions, FormatReader, SeekMode, SeekTo},
        io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions, ReadBytes},
        packet::Packet,
        units::Timestamp,
    },
    default::{
        formats::{FlacReader, MpaReader, OggReader, WavReader},
        get_codecs,
    },
};

use crate::error::{DataError, DataProblem, Result};

/// Maximum sample rate in Hz. It keeps a damaged header from making the resampler's kernel huge.
pub(super) const MAX_SAMPLE_RATE: u32 = 768_000;

/// Maximum number of channels: that of Vorbis. A WAV header may claim more, and the decoder allocates memory
/// for each.
const MAX_CHANNELS: usize = 255;

/// Maximum number of bytes of a page of Ogg.
const MAX_PAGE: u64 = 27 + 255 + 255 * 255;

/// Maximum number of packets of an MP3 that have only padding. Encoders write one or two.
const MAX_PADDING_PACKETS: usize = 3;

/// Maximum number of zero bytes before the first frame of an MP3.
const MAX_ZEROS: u64 = 4096;

/// Sizes of the chunk `data` in files that programs have written to a pipe, where they cannot replace the size at the
/// end. sox writes 0x7ffff000, rounded down to whole frames, and arecord 0x7fffff00 or 0x80000000. FFmpeg writes
/// `u32::MAX`, which is never a real size.
const UNKNOWN_SIZES: RangeInclusive<u32> = 0x7fff_0000..=0x8000_0000;

const NO_SAMPLES: &str = "the size in its header is 0; the recording was probably cut off, so write the \
                          file again with an audio program";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Wav,
    /// A WAV whose header does not tell the number of frames. The samples end at the end of the file.
    StreamedWav,
    Flac,
    Mp3,
    Ogg,
}

/// An audio file whose header was read.
pub(super) struct AudioFile<'a> {
    format: Format,
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    pub(super) rate: u32,
    pub(super) channels: usize,
    /// Number of frames, if the header tells it.
    frames: Option<u64>,
}

impl<'a> AudioFile<'a> {
    /// Reads the header.
    pub(super) fn open(mut source: Box<dyn MediaSource + 'a>) -> Result<Self, DataProblem> {
        let (format, offset) = Format::recognise(&mut source)?;
        if format == Format::Ogg {
            check_last_page(&mut source)?;
        }
        source.rewind()?;
        let mut stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
        stream.ignore_bytes(offset)?;
        let failed = |error| format.problem(error);
        let reader = format.read_header(stream).map_err(failed)?;
        let track = reader.tracks().iter().find_map(|track| match &track.codec_params {
            Some(CodecParameters::Audio(parameters)) => Some((track, parameters)),
            _ => None,
        });
        let Some((track, parameters)) = track else {
            return Err(DataProblem::Unsupported("there is no track with a known audio codec".to_owned()));
        };
        let rate = parameters.sample_rate.unwrap_or(0);
        let channels = parameters.channels.as_ref().map_or(0, |channels| channels.count());
        if !(1..=MAX_SAMPLE_RATE).contains(&rate) || !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(format.malformed(format!("{channels} channels with a sample rate of {rate} Hz")));
        }
        // Without a LAME tag, the number of frames of an MP3 may be an estimate, by which nothing may be cut
        // off.
        let is_exact = format != Format::Mp3 || track.delay.is_some();
        let options = AudioDecoderOptions::default().gapless(is_exact);
        let decoder = get_codecs().make_audio_decoder(parameters, &options).map_err(failed)?;
        let is_exact = is_exact && !matches!(format, Format::Ogg | Format::StreamedWav);
        let frames = track.num_frames.filter(|_| is_exact);
        if frames == Some(0) {
            return Err(format.malformed(NO_SAMPLES.to_owned()));
        }
        Ok(Self { format, decoder, track: track.id, rate, channels, frames, reader })
    }

    /// Number of frames, if the header tells it and a part of the file can be decoded alone.
    pub(super) fn seekable_frames(&self) -> Option<u64> {
        self.frames.filter(|_| self.can_seek())
    }

    /// True if the decoder gives the same samples after a seek. MP3 and Vorbis overlap their blocks.
    fn can_seek(&self) -> bool {
        matches!(self.format, Format::Wav | Format::Flac)
    }

    /// Decodes the frames of `range`, or all frames without one. Returns the samples of each channel, or of
    /// their mean if `mono`.
    ///
    /// # Errors
    /// Returns [`DataProblem::TooLarge`] for more than `max_bytes` bytes of samples.
    pub(super) fn decode(
        mut self,
        range: Option<Range<u64>>,
        mono: bool,
        max_bytes: u64,
    ) -> Result<Vec<Vec<f32>>, DataProblem> {
        let is_whole = range.is_none();
        let Range { start, end } = range.unwrap_or(0..self.frames.unwrap_or(u64::MAX));
        let mut channels = vec![Vec::new(); if mono { 1 } else { self.channels }];
        if start > 0 {
            let to = SeekTo::Timestamp { ts: Timestamp::new(start as i64), track_id: self.track };
            self.reader.seek(SeekMode::Accurate, to).map_err(|error| self.format.problem(error))?;
            self.decoder.reset();
        }
        let mut planes = Vec::new();
        // The frame after those of the last packet. A seek goes to the packet with the frame `start`, or
        // before it.
        let mut next = None;
        while next.is_none_or(|next| next < end) && start < end {
            let Some(packet) = self.next_packet()? else { break };
            let format = self.format;
            let first = match (self.can_seek(), next) {
                (true, Some(next)) if packet.pts.get() != next as i64 => {
                    return Err(format.malformed(format!("the frames after frame {next} are missing")));
                }
                (true, None) => u64::try_from(packet.pts.get()).unwrap_or(0),
                (_, next) => next.unwrap_or(0),
            };
            if next.is_none() && first > start {
                return Err(format.malformed(format!("the frames after frame {start} are missing")));
            }
            let frames = self.decode_packet(&packet, &mut planes)?;
            let part = start.saturating_sub(first).min(frames)..end.saturating_sub(first).min(frames);
            let kept = (channels[0].len() as u64 + part.end - part.start) * channels.len() as u64;
            check_bytes(kept, max_bytes)?;
            keep(&mut channels, &planes, part.start as usize..part.end as usize);
            next = Some(first + frames);
        }
        let required = self.frames.map_or(u64::from(self.format == Format::StreamedWav), |_| end);
        if next.unwrap_or(0) < required {
            return Err(DataProblem::Truncated);
        }
        if is_whole && self.format == Format::Mp3 && self.frames.is_some() {
            self.check_end(end)?;
        }
        Ok(channels)
    }

    /// Checks that an MP3 has not much more packets than the `frames` of its header, as one that was appended to
    /// another has.
    fn check_end(&mut self, frames: u64) -> Result<(), DataProblem> {
        for _ in 0..MAX_PADDING_PACKETS {
            if self.next_packet()?.is_none() {
                return Ok(());
            }
        }
        match self.next_packet()? {
            None => Ok(()),
            Some(_) => Err(self.format.malformed(format!(
                "it has more than the {frames} frames that its header names; write it again with an audio program"
            ))),
        }
    }

    fn next_packet(&mut self) -> Result<Option<Packet>, DataProblem> {
        loop {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id != self.track => {}
                Ok(packet) => return Ok(packet),
                Err(Error::IoError(error))
                    if self.format == Format::StreamedWav && error.kind() == io::ErrorKind::UnexpectedEof =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(self.format.problem(error)),
            }
        }
    }

    /// Decodes a packet to the samples of each channel. Returns the number of frames.
    fn decode_packet(&mut self, packet: &Packet, planes: &mut Vec<Vec<f32>>) -> Result<u64, DataProblem> {
        let format = self.format;
        let decoded: GenericAudioBufferRef<'_> =
            self.decoder.decode(packet).map_err(|error| format.problem(error))?;
        let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
        if (rate, channels) != (self.rate, self.channels) {
            return Err(format.malformed(format!(
                "{} channels at {} Hz become {channels} channels at {rate} Hz",
                self.channels, self.rate
            )));
        }
        decoded.copy_to_vecs_planar::<f32>(planes);
        Ok(decoded.frames() as u64)
    }
}

/// Appends a part of `planes` to `channels`, or the mean of all planes if there is one channel.
fn keep(channels: &mut [Vec<f32>], planes: &[Vec<f32>], part: Range<usize>) {
    if let [mono] = channels {
        let mean = |frame: usize| planes.iter().map(|plane| plane[frame]).sum::<f32>() / planes.len() as f32;
        mono.extend(part.map(mean));
        return;
    }
    for (channel, plane) in channels.iter_mut().zip(planes) {
        channel.extend_from_slice(&plane[part.clone()]);
    }
}

/// Fails if `samples` samples have more than `max` bytes.
pub(super) fn check_bytes(samples: u64, max: u64) -> Result<(), DataProblem> {
    let len = samples.saturating_mul(size_of::<f32>() as u64);
    if len > max { Err(DataProblem::TooLarge { len, max, option: "max_sample_bytes" }) } else { Ok(()) }
}

impl Format {
    /// Returns the format that the first bytes of a file tell, and the number of bytes before its content: ID3
    /// tags, and zeros before the first frame of an MP3.
    fn recognise(source: &mut (impl Read + Seek)) -> Result<(Self, u64), DataProblem> {
        let mut offset = 0;
        let mut first_bytes = read_first_bytes(source, offset)?;
        while first_bytes.starts_with(b"ID3") {
            let has_footer = first_bytes[5] & 0x10 != 0;
            let body = first_bytes[6..10].iter().fold(0, |len, byte| len << 7 | u64::from(byte & 0x7f));
            offset += 10 + body + if has_footer { 10 } else { 0 };
            first_bytes = read_first_bytes(source, offset)?;
        }
        let has_zeros = first_bytes[0] == 0;
        if has_zeros {
            offset += count_zeros(source, offset)?;
            first_bytes = read_first_bytes(source, offset)?;
        }
        let format = match &first_bytes {
            // Eleven bits mark the beginning of a block, and two bits tell layer III.
            [0xff, second, ..] if second & 0xe6 == 0xe2 => Self::Mp3,
            _ if has_zeros => return Err(unknown_content()),
            [b'R', b'I', b'F', b'F', size @ .., b'W', b'A', b'V', b'E'] => {
                Self::of_wav(source, u32::from_le_bytes(*size))?
            }
            [b'f', b'L', b'a', b'C', ..] => Self::Flac,
            [b'O', b'g', b'g', b'S', ..] => Self::Ogg,
            _ => return Err(unknown_content()),
        };
        Ok((format, offset))
    }

    /// Returns the format of a WAV whose chunk `RIFF` has `size` bytes. `source` is at the first chunk inside `RIFF`.
    fn of_wav(source: &mut (impl Read + Seek), size: u32) -> Result<Self, DataProblem> {
        match size {
            0 => Err(Self::Wav.malformed(NO_SAMPLES.to_owned())),
            _ if size >= *UNKNOWN_SIZES.start() && is_streamed(source).map_err(problem_of)? => {
                Ok(Self::StreamedWav)
            }
            _ => Ok(Self::Wav),
        }
    }

    fn read_header<'a>(self, stream: MediaSourceStream<'a>) -> Result<Box<dyn FormatReader + 'a>, Error> {
        let options = FormatOptions::default();
        Ok(match self {
            Self::Wav | Self::StreamedWav => Box::new(WavReader::try_new(stream, options)?),
            Self::Flac => Box::new(FlacReader::try_new(stream, options)?),
            Self::Mp3 => Box::new(MpaReader::try_new(stream, options)?),
            Self::Ogg => Box::new(OggReader::try_new(stream, options)?),
        })
    }

    fn malformed(self, reason: String) -> DataProblem {
        let format = match self {
            Self::Wav | Self::StreamedWav => "WAV",
            Self::Flac => "FLAC",
            Self::Mp3 => "MP3",
            Self::Ogg => "Ogg Vorbis",
        };
        DataProblem::Malformed { format, reason }
    }

    fn problem(self, error: Error) -> DataProblem {
        match error {
            Error::IoError(error) => problem_of(error),
            Error::Unsupported(what) => DataProblem::Unsupported(what.to_owned()),
            Error::DecodeError(reason) => self.malformed(reason.to_owned()),
            other => self.malformed(other.to_string()),
        }
    }
}

fn unknown_content() -> DataProblem {
    let text = "the content is not WAV, FLAC, MP3 or Ogg; convert it or remove it";
    DataProblem::Unsupported(text.to_owned())
}

/// Returns the 12 bytes from byte `offset`.
fn read_first_bytes(source: &mut (impl Read + Seek), offset: u64) -> Result<[u8; 12], DataProblem> {
    let mut first_bytes = [0; 12];
    source.seek(SeekFrom::Start(offset))?;
    source.read_exact(&mut first_bytes).map_err(problem_of)?;
    Ok(first_bytes)
}

/// Returns the number of zero bytes from byte `offset`, at most [`MAX_ZEROS`].
fn count_zeros(source: &mut (impl Read + Seek), offset: u64) -> io::Result<u64> {
    let mut bytes = Vec::new();
    source.seek(SeekFrom::Start(offset))?;
    source.take(MAX_ZEROS).read_to_end(&mut bytes)?;
    Ok(bytes.iter().take_while(|&&byte| byte == 0).count() as u64)
}

fn problem_of(error: io::Error) -> DataProblem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DataProblem::Truncated,
        // Errors of the system have a code, and those of a file are a `DataError`; those of decoders have a text.
        _ if error.raw_os_error().is_some()
            || error.get_ref().is_some_and(|error| error.is::<DataError>()) =>
        {
            DataProblem::Unreadable(error)
        }
        _ => DataProblem::Malformed { format: "audio", reason: error.to_string() },
    }
}

/// Reads the chunks of a WAV up to `data`. Returns true if a program that did not know the size of `data` has
/// written it.
fn is_streamed(source: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut name = [0; 4];
    let mut size = [0; 4];
    loop {
        source.read_exact(&mut name)?;
        source.read_exact(&mut size)?;
        let size = u32::from_le_bytes(size);
        if &name == b"data" {
            let end = source.stream_position()? + u64::from(size);
            return Ok(
                size == u32::MAX || UNKNOWN_SIZES.contains(&size) && end > source.seek(SeekFrom::End(0))?
            );
        }
        // A chunk of an odd number of bytes has one more byte.
        source.seek_relative(i64::from(size) + i64::from(size % 2))?;
    }
}

/// Fails if an Ogg file does not end with a whole page that is marked as the last one. The library does not
/// check this.
fn check_last_page(source: &mut (impl Read + Seek)) -> Result<(), DataProblem> {
    let len = source.seek(SeekFrom::End(0))?;
    source.seek(SeekFrom::Start(len.saturating_sub(MAX_PAGE)))?;
    let mut end = Vec::new();
    source.take(MAX_PAGE).read_to_end(&mut end)?;
    let is_last = |page: &[u8]| {
        let Some(&[flags]) = page.get(5..6) else { return false };
        let Some((&segments, rest)) = page.get(26..).and_then(<[u8]>::split_first) else { return false };
        let Some((lengths, content)) = rest.split_at_checked(segments.into()) else { return false };
        let bytes: usize = lengths.iter().map(|&length| usize::from(length)).sum();
        flags & 4 != 0 && content.len() >= bytes
    };
    let mut starts = (0..end.len()).rev().filter(|&start| end[start..].starts_with(b"OggS"));
    if starts.next().is_some_and(|start| is_last(&end[start..])) {
        Ok(())
    } else {
        Err(DataProblem::Truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_decoder_is_not_one_of_the_file() {
        let of_decoder = io::Error::other("a block has another size");
        assert!(matches!(problem_of(of_decoder), DataProblem::Malformed { format: "audio", .. }));
        assert!(matches!(problem_of(io::ErrorKind::UnexpectedEof.into()), DataProblem::Truncated));
        assert!(matches!(problem_of(rustix::io::Errno::IO.into()), DataProblem::Unreadable(_)));
        let of_file = io::Error::other(DataError::new("a", DataProblem::NotFound));
        assert!(matches!(problem_of(of_file), DataProblem::Unreadable(_)));
    }
}
