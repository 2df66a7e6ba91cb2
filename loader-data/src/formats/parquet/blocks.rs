//! Draws rows at random among a few open row groups.

use std::collections::VecDeque;

use loader_core::{
    internal::below,
    rand::{Rng, SeedableRng, rngs::ChaCha8Rng},
};

/// The order in which a shard returns the rows of its row groups: `max_open` groups are open, each draw takes
/// any of their remaining rows with equal probability, and the next group is opened when one has no rows
/// left.
///
/// It is a function of the generator and the sizes of the groups: no row must be read to know the order.
#[derive(Debug)]
pub(super) struct Draws {
    rng: ChaCha8Rng,
    max_open: usize,
    /// The groups that have not been opened, with their numbers of rows.
    later: VecDeque<(usize, usize)>,
    open: Vec<OpenGroup>,
    /// Number of rows that remain in the open groups.
    remaining: u64,
}

#[derive(Debug)]
struct OpenGroup {
    group: usize,
    /// The rows that remain.
    rows: Vec<u32>,
}

/// A row, and whether it is the last of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) group: usize,
    pub(super) row: usize,
    pub(super) is_last: bool,
}

impl Draws {
    /// Creates the order of groups with the given numbers of rows. It takes a seed from `rng`.
    pub(super) fn new(
        rng: &mut ChaCha8Rng,
        max_open: usize,
        groups: impl IntoIterator<Item = (usize, usize)>,
    ) -> Self {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        let later = groups.into_iter().collect();
        Self { rng: ChaCha8Rng::from_seed(seed), max_open, later, open: Vec::new(), remaining: 0 }
    }

    /// Returns the group that is decoded next: of the open groups that are not decoded, the one that a draw takes first.
    /// If all open groups are decoded, it is the next one to be opened. (A much smaller group after that one could be
    /// drawn first. To know this, all draws until then would have to be made.)
    pub(super) fn decoded_next(&self, is_decoded: impl Fn(usize) -> bool) -> Option<usize> {
        let mut later = self.later.iter().copied();
        let mut open: Vec<_> = self.open.iter().map(|open| (open.group, open.rows.len())).collect();
        // Which group a draw takes depends on the numbers of rows, and not on which rows remain.
        let mut rng = ChaCha8Rng::from_seed(self.rng.get_seed());
        rng.set_word_pos(self.rng.get_word_pos());
        let mut remaining = self.remaining;
        loop {
            while open.len() < self.max_open
                && let Some((group, rows)) = later.next()
            {
                open.push((group, rows));
                remaining += rows as u64;
            }
            if open.iter().all(|&(group, _)| is_decoded(group)) {
                return later.next().map(|(group, _)| group);
            }
            let (position, _) = draw(&mut rng, remaining, open.iter().map(|&(_, rows)| rows));
            let (group, rows) = &mut open[position];
            if !is_decoded(*group) {
                return Some(*group);
            }
            *rows -= 1;
            remaining -= 1;
            if *rows == 0 {
                open.remove(position);
            }
        }
    }
}

/// Draws one of the `remaining` rows of all open groups. Returns the position of its group, and its index in the group.
fn draw(rng: &mut ChaCha8Rng, remaining: u64, mut sizes: impl Iterator<Item = usize>) -> (usize, usize) {
    let mut at = below(rng, remaining) as usize;
    let position = sizes.position(|rows| match at.checked_sub(rows) {
        Some(rest) => {
            at = rest;
            false
        }
        None => true,
    });
    (position.expect("`remaining` is the sum of the rows of the open groups"), at)
}

impl Iterator for Draws {
    type Item = Drawn;

    fn next(&mut self) -> Option<Drawn> {
        while self.open.len() < self.max_open
            && let Some((group, rows)) = self.later.pop_front()
        {
            self.open.push(OpenGroup { group, rows: (0..rows as u32).collect() });
            self.remaining += rows as u64;
        }
        if self.remaining == 0 {
            return None;
        }
        let sizes = self.open.iter().map(|open| open.rows.len());
        let (position, at) = draw(&mut self.rng, self.remaining, sizes);
        let open = &mut self.open[position];
        let (group, row) = (open.group, open.rows.swap_remove(at) as usize);
        let is_last = open.rows.is_empty();
        self.remaining -= 1;
        if is_last {
            self.open.remove(position);
        }
        Some(Drawn { group, row, is_last })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn draws(seed: u64, max_open: usize, sizes: &[usize]) -> Draws {
        Draws::new(&mut ChaCha8Rng::seed_from_u64(seed), max_open, sizes.iter().copied().enumerate())
    }

    proptest! {
        #[test]
        fn each_row_is_drawn_once_and_few_groups_are_open(
            seed: u64, max_open in 1usize..5, sizes in prop::collection::vec(1usize..20, 0..12),
        ) {
            let mut open = BTreeSet::new();
            let mut rows = Vec::new();
            for drawn in draws(seed, max_open, &sizes) {
                open.insert(drawn.group);
                prop_assert!(open.len() <= max_open);
                if drawn.is_last {
                    open.remove(&drawn.group);
                }
                rows.push((drawn.group, drawn.row));
            }
            prop_assert!(open.is_empty());
            rows.sort_unstable();
            let all = sizes.iter().enumerate().flat_map(|(group, &rows)| (0..rows).map(move |row| (group, row)));
            prop_assert!(rows.into_iter().eq(all));
        }

        #[test]
        fn the_next_group_is_known_before_it_is_drawn(
            seed: u64, max_open in 1usize..5, sizes in prop::collection::vec(1usize..20, 0..12),
        ) {
            let mut draws = draws(seed, max_open, &sizes);
            let mut drawn = BTreeSet::new();
            let mut expected = draws.decoded_next(|_| false);
            let mut is_exact = true;
            while let Some(next) = draws.next() {
                if drawn.insert(next.group) && is_exact {
                    prop_assert_eq!(expected, Some(next.group));
                }
                is_exact = draws.open.iter().any(|open| !drawn.contains(&open.group));
                expected = draws.decoded_next(|group| drawn.contains(&group));
                if !is_exact && draws.open.len() == max_open {
                    prop_assert_eq!(expected, draws.later.front().map(|&(group, _)| group));
                }
            }
            prop_assert_eq!((expected, drawn.len()), (None, sizes.len()));
        }
    }

    #[test]
    fn rows_are_mixed_within_and_between_the_open_groups() {
        let order: Vec<Drawn> = draws(7, 4, &[1000; 4]).collect();
        let halves = order[..2000].iter().filter(|drawn| drawn.row < 500).count();
        assert!((900..1100).contains(&halves), "{halves}");
        let first = order[..400].iter().filter(|drawn| drawn.group == 0).count();
        assert!((60..140).contains(&first), "{first}");
    }

    #[test]
    fn the_order_never_changes_between_releases() {
        let order: Vec<_> = draws(7, 2, &[2, 3, 2]).map(|drawn| (drawn.group, drawn.row)).collect();
        assert_eq!(order, GOLDEN);
    }

    const GOLDEN: [(usize, usize); 7] = [(0, 0), (1, 2), (0, 1), (2, 0), (2, 1), (1, 0), (1, 1)];
}
