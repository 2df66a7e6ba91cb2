//! Datasets for this folder's tests. A sample is a number and a draw from the sample's generator.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::Dataset;
use crate::context::Context;

/// Numbers from `first` on, one by one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plain {
    pub(super) first: u64,
    pub(super) len: usize,
}

impl Dataset for Plain {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<(u64, u64)> {
        Ok((self.first + index as u64, cx.rng().random()))
    }
}

/// Numbers from `first` on, several at once; `wrong` more than asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) first: u64,
    pub(super) len: usize,
    pub(super) wrong: usize,
}

impl Dataset for Counted {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<(u64, u64)> {
        Ok((self.first + index as u64, cx.rng().random()))
    }

    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<(u64, u64)>> {
        let surplus = std::iter::repeat_n(&0, self.wrong);
        let load = |&index| Ok((self.first + index as u64, draw(cx, index)));
        indices.iter().chain(surplus).map(load).collect()
    }
}

/// The first number of the generator of sample `index`.
pub(super) fn draw(cx: &mut Context, index: usize) -> u64 {
    cx.set_index(index);
    cx.rng().random()
}
