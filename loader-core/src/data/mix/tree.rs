//! The tree of [`MixRule::Even`](super::MixRule::Even).

use std::{cmp::Reverse, collections::BinaryHeap};

/// A Huffman tree over the datasets whose weight is above 0. See the documentation of the module `mix`.
#[derive(Debug)]
pub(super) struct Tree {
    /// Children come before their parent, so the root is last.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    weight: u64,
    content: Content,
}

#[derive(Debug, Clone, Copy)]
enum Content {
    Dataset(usize),
    Children(usize, usize),
}

impl Tree {
    pub(super) fn new(weights: &[u64]) -> Self {
        let leaves = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
        let mut nodes: Vec<Node> =
            leaves.map(|(dataset, &weight)| Node { weight, content: Content::Dataset(dataset) }).collect();
        let mut roots: BinaryHeap<_> =
            nodes.iter().enumerate().map(|(number, node)| Reverse((node.weight, number))).collect();
        while let (Some(Reverse((left, one))), Some(Reverse((right, other)))) =
            (roots.pop(), roots.peek().copied())
        {
            roots.pop();
            roots.push(Reverse((left + right, nodes.len())));
            nodes.push(Node { weight: left + right, content: Content::Children(one, other) });
        }
        Self { nodes }
    }

    /// Returns how many of the first `samples` samples of node `parent` its left child gives.
    fn of_left(&self, parent: u64, left: usize, samples: u64) -> u64 {
        let left = self.nodes[left].weight;
        let scaled = samples.checked_mul(left).and_then(|scaled| scaled.checked_add(parent / 2));
        match scaled {
            Some(scaled) => scaled / parent,
            None => {
                let scaled = u128::from(samples) * u128::from(left) + u128::from(parent / 2);
                (scaled / u128::from(parent)) as u64
            }
        }
    }

    /// Returns the dataset of sample `sample`; `None` if all weights are 0.
    pub(super) fn dataset(&self, mut sample: u64) -> Option<usize> {
        let mut node = self.nodes.last()?;
        loop {
            match node.content {
                Content::Dataset(dataset) => return Some(dataset),
                Content::Children(left, right) => {
                    let before = self.of_left(node.weight, left, sample);
                    let is_left = self.of_left(node.weight, left, sample + 1) > before;
                    (node, sample) = if is_left {
                        (&self.nodes[left], before)
                    } else {
                        (&self.nodes[right], sample - before)
                    };
                }
            }
        }
    }

    /// Adds to `counts` how many of the first `samples` samples each dataset gives.
    pub(super) fn count(&self, samples: u64, counts: &mut [u64]) {
        let mut of_nodes = vec![0; self.nodes.len()];
        if let Some(root) = of_nodes.last_mut() {
            *root = samples;
        }
        for (number, node) in self.nodes.iter().enumerate().rev() {
            let samples = of_nodes[number];
            match node.content {
                Content::Dataset(dataset) => counts[dataset] += samples,
                Content::Children(left, right) => {
                    of_nodes[left] = self.of_left(node.weight, left, samples);
                    of_nodes[right] = samples - of_nodes[left];
                }
            }
        }
    }
}

/// Returns integers in the proportions of `weights`. The sum is below 2^54.
pub(super) fn integers(weights: &[f64]) -> Vec<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    const SUM: f64 = (1u64 << 40) as f64;
    let sum: f64 = weights.iter().sum();
    for digits in 0..=9 {
        let scale = 10f64.powi(digits);
        let is_integer =
            |weight: &f64| (weight * scale - (weight * scale).round()).abs() <= weight * scale * 1e-15;
        if sum * scale < EXACT && weights.iter().all(is_integer) {
            return weights.iter().map(|weight| (weight * scale).round() as u64).collect();
        }
    }
    let scaled = |&weight: &f64| ((weight / sum * SUM).round() as u64).max(u64::from(weight > 0.0));
    weights.iter().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_weights_are_exact() {
        assert_eq!(integers(&[3.0, 1.0]), [3, 1]);
        assert_eq!(integers(&[0.7, 0.3]), [7, 3]);
        assert_eq!(integers(&[0.125, 0.0, 2.5]), [125, 0, 2500]);
        assert_eq!(integers(&[1.0, 1.0 / 3.0]), [824_633_720_832, 274_877_906_944]);
        assert_eq!(integers(&[1e300, 1e300, 1.0]), [1 << 39, 1 << 39, 1]);
    }
}
