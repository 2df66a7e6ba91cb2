//! Measures whether a quantity grows while a program runs.

use std::fmt;

/// A quantity that was measured many times.
#[derive(Debug, Default)]
pub struct Series {
    /// Seconds since the start, and the value then.
    points: Vec<(f64, f64)>,
}

/// The trend of a [`Series`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// The largest value of the whole series.
    pub max: f64,
    /// Growth per second in the second half, by least squares.
    pub slope: f64,
    /// The slope times the length of the whole series.
    pub total: f64,
}

impl Series {
    /// Adds a value.
    pub fn add(&mut self, seconds: f64, value: f64) {
        self.points.push((seconds, value));
    }

    /// Fits a line through the values of the second half of the time. In the first half, caches fill, and the
    /// allocator takes memory that it then keeps.
    ///
    /// # Panics
    /// If the second half has fewer than three values, or all values have the same time.
    pub fn growth(&self) -> Growth {
        let end = self.points.last().map_or(0.0, |(seconds, _)| *seconds);
        let half: Vec<_> = self.points.iter().filter(|(seconds, _)| *seconds >= end / 2.0).collect();
        assert!(half.len() >= 3, "{} values are too few for a line", half.len());
        let count = half.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| half.iter().map(|point| of(point)).sum::<f64>() / count;
        let (time, value) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            half.iter().map(|(seconds, found)| of(seconds - time, found - value)).sum()
        };
        let spread = sum(&|seconds, _| seconds * seconds);
        assert!(spread > 0.0, "all values have the same time");
        let slope = sum(&|seconds, found| seconds * found) / spread;
        let max = self.points.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
        Growth { max, slope, total: slope * end }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, slope, total } = self;
        write!(formatter, "at most {max:.0}, slope {:.1} an hour, {total:.1} over the run", slope * 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

    use super::*;

    /// Half an hour with a value twice a second: `value` plus noise of up to `noise` on either side.
    fn half_an_hour(noise: f64, value: impl Fn(f64) -> f64) -> Growth {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut series = Series::default();
        for tick in 0..3600 {
            let seconds = f64::from(tick) / 2.0;
            series.add(seconds, value(seconds) + rng.random_range(-noise..=noise));
        }
        series.growth()
    }

    #[test]
    fn a_line_is_found_exactly() {
        let growth = half_an_hour(0.0, |seconds| 5.0 + 2.0 * seconds);
        assert!(
            (growth.slope - 2.0).abs() < 1e-9 && (growth.total - 2.0 * 1799.5).abs() < 1e-6,
            "{growth:?}"
        );
        assert!((growth.max - 3604.0).abs() < 1e-9, "{growth:?}");
    }

    #[test]
    fn a_leak_of_60_mb_is_seen_through_noise() {
        let growth = half_an_hour(4e6, |seconds| 3e6 + 60e6 * seconds / 1800.0);
        assert!((55e6..65e6).contains(&growth.total), "{growth:?}");
    }

    #[test]
    fn noise_and_a_warm_up_are_no_growth() {
        let growth = half_an_hour(4e6, |seconds| if seconds < 600.0 { 3e6 } else { 30e6 });
        assert!(growth.total.abs() < 1e6, "{growth:?}");
        // Noise of the size that workers and slots cause in the number of descriptors.
        let growth = half_an_hour(12.0, |_| 60.0);
        assert!(growth.total.abs() < 4.0, "{growth:?}");
    }
}
