//! Changes the sample rate.

use std::{f64::consts::PI, ops::Range};

/// Zero crossings of the kernel on each side, and its cut-off as a fraction of the lower Nyquist frequency:
/// the defaults of torchaudio.
const ZERO_CROSSINGS: f64 = 6.0;
const ROLLOFF: f64 = 0.99;

/// Converts between two sample rates with a sinc function in a Hann window, as
/// `torchaudio.functional.resample` does by default. Each frame of the output depends on a few frames of the
/// input only, so that a part of a file becomes the same samples as in the whole file.
///
/// Alternative considered: the crate `rubato`. Rejected because its results differ from torchaudio's, and
/// because it converts a stream from its beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resampler {
    /// The rates, divided by their greatest common divisor.
    rate: u64,
    new_rate: u64,
}

impl Resampler {
    /// # Panics
    /// Panics if both rates are 0.
    pub(super) fn new(rate: u32, new_rate: u32) -> Self {
        let (mut divisor, mut rest) = (rate, new_rate);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self { rate: (rate / divisor).into(), new_rate: (new_rate / divisor).into() }
    }

    /// Number of output frames of a file with `frames` frames.
    pub(super) fn output_len(self, frames: u64) -> u64 {
        (u128::from(frames) * u128::from(self.new_rate))
            .div_ceil(self.rate.into())
            .try_into()
            .unwrap_or(u64::MAX)
    }

    /// Returns the frames of a file with `frames` frames that the output frames `output` depend on.
    pub(super) fn input_of(self, output: &Range<u64>, frames: u64) -> Range<u64> {
        if output.is_empty() || self.rate == self.new_rate {
            return output.clone();
        }
        let first = self.position(output.start).0.saturating_sub(self.reach());
        let last = self.position(output.end - 1).0.saturating_add(self.reach());
        first..frames.min(last.saturating_add(1))
    }

    /// Writes the output frames from `start` on to `output`. `input` has the frames of the file from `offset`
    /// on that the output depends on; frames before and after the file are silent.
    pub(super) fn run(self, input: &[f32], offset: u64, start: u64, output: &mut [f32]) {
        if self.rate == self.new_rate {
            output.copy_from_slice(&input[(start - offset) as usize..][..output.len()]);
            return;
        }
        let reach = self.reach() as i64;
        let step = self.new_rate as usize;
        // Every `step`th frame of the output has the same distances to the frames of the input.
        for phase in 0..step.min(output.len()) {
            let (_, fraction) = self.position(start + phase as u64);
            let kernel: Vec<f32> = (-reach..=reach).map(|tap| self.weight(tap as f64 - fraction)).collect();
            for index in (phase..output.len()).step_by(step) {
                let center = self.position(start + index as u64).0 as i64 - offset as i64;
                let first = center - reach;
                let skipped = (-first).max(0) as usize;
                let taps = kernel.iter().skip(skipped).zip(&input[first.max(0) as usize..]);
                output[index] = taps.map(|(weight, sample)| weight * sample).sum();
            }
        }
    }

    /// Position of an output frame in the input: a frame, and a fraction.
    fn position(self, output: u64) -> (u64, f64) {
        let scaled = u128::from(output) * u128::from(self.rate);
        let new_rate = u128::from(self.new_rate);
        ((scaled / new_rate) as u64, (scaled % new_rate) as f64 / self.new_rate as f64)
    }

    /// Cut-off in cycles per two input frames.
    fn cutoff(self) -> f64 {
        ROLLOFF * self.rate.min(self.new_rate) as f64 / self.rate as f64
    }

    /// Number of input frames on each side of a position that have a weight.
    fn reach(self) -> u64 {
        (ZERO_CROSSINGS / self.cutoff()).ceil() as u64
    }

    /// Weight of an input frame at a distance from the position, in frames.
    fn weight(self, distance: f64) -> f32 {
        let crossings = (distance * self.cutoff()).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS);
        let window = (crossings * PI / ZERO_CROSSINGS / 2.0).cos().powi(2);
        let angle = crossings * PI;
        let sinc = if angle == 0.0 { 1.0 } else { angle.sin() / angle };
        (sinc * window * self.cutoff()) as f32
    }
}
