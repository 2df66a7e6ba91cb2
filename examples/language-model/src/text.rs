//! The text: lines of one to four sums, such as `7+5=12 0+3=3`.

use std::f64::consts::LN_10;

use loader::rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

const MAX_SUMS: usize = 4;

/// Number of bytes of the longest line: sums of six bytes, and the spaces between them.
pub(crate) const LONGEST: usize = MAX_SUMS * 6 + MAX_SUMS - 1;

/// Writes `lines` lines with random sums.
pub(crate) fn write(lines: usize, seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut line = || {
        let sums = (0..rng.random_range(1..=MAX_SUMS)).map(|_| {
            let (left, right) = (rng.random_range(0..10), rng.random_range(0..10));
            format!("{left}+{right}={}", left + right)
        });
        sums.collect::<Vec<_>>().join(" ") + "\n"
    };
    (0..lines).map(|_| line()).collect()
}

/// Returns the entropy of the text in nats per byte: no model can have a lower loss on average. Each operand is one
/// of ten digits with equal probability, which costs `ln 10` nats, and every other byte follows from those
/// before it.
pub(crate) fn entropy(text: &str) -> f64 {
    let sums = text.matches('+').count();
    let bytes: usize = text.lines().map(str::len).sum();
    2.0 * LN_10 * sums as f64 / bytes as f64
}

/// Returns the number of correct sums in a line, and the number of sums that are complete.
pub(crate) fn check(line: &str) -> (usize, usize) {
    let complete = line.split(' ').filter(|sum| !sum.is_empty());
    let correct = complete.clone().filter(|sum| is_correct(sum).unwrap_or(false)).count();
    (correct, complete.count())
}

fn is_correct(sum: &str) -> Option<bool> {
    let (operands, result) = sum.split_once('=')?;
    let (left, right) = operands.split_once('+')?;
    let number = |text: &str| text.parse::<u32>().ok();
    Some(number(left)? + number(right)? == number(result)?)
}
