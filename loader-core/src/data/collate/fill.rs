//! How many tokens of a batch are padding.

use std::{fmt, iter::Sum, ops::Add};

/// How full windows are. The sum of several is that of all their windows.
///
/// # Examples
/// ```
/// use loader_core::pack::Fill;
///
/// let all: Fill = [Fill { tokens: 90, capacity: 100 }, Fill { tokens: 300, capacity: 300 }].into_iter().sum();
/// assert_eq!((all.ratio(), all.to_string().as_str()), (0.975, "97.5 % full"));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fill {
    /// Number of tokens that are not padding.
    pub tokens: u64,
    /// Number of tokens with padding.
    pub capacity: u64,
}

impl Fill {
    /// Share of the tokens that are not padding, from 0 to 1; 1 without tokens.
    pub fn ratio(self) -> f64 {
        if self.capacity == 0 { 1.0 } else { self.tokens as f64 / self.capacity as f64 }
    }
}

impl Add for Fill {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, capacity: self.capacity + other.capacity }
    }
}

impl Sum for Fill {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} % full", self.ratio() * 100.0)
    }
}
