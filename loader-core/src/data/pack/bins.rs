//! First-fit and best-fit decreasing.

use std::collections::BTreeSet;

use super::PackMethod;

/// Puts pieces of the lengths `lens`, each at most `window`, into windows. Returns the pieces of each window
/// in ascending order.
pub(super) fn pack(lens: &[usize], window: usize, method: PackMethod) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    // Stable, so that equal pieces keep their order.
    order.sort_by_key(|&piece| std::cmp::Reverse(lens[piece]));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut rooms = Rooms::new(lens.len(), method);
    for piece in order {
        let (bin, room) = rooms.take(lens[piece]).unwrap_or((bins.len(), window));
        if bin == bins.len() {
            bins.push(Vec::new());
        }
        bins[bin].push(piece);
        rooms.put(bin, room - lens[piece]);
    }
    bins.iter_mut().for_each(|bin| bin.sort_unstable());
    bins
}

/// The room that is left in each window.
enum Rooms {
    /// Windows by their room, then by their number.
    Best(BTreeSet<(usize, usize)>),
    /// A tree: node 1 is the root, the children of node `n` are `2n` and `2n + 1`, and a node has the largest
    /// room below it. Window `i` is node `leaves + i`.
    First { leaves: usize, largest: Vec<usize> },
}

impl Rooms {
    fn new(bins: usize, method: PackMethod) -> Self {
        let leaves = bins.next_power_of_two();
        match method {
            PackMethod::FirstFit => Self::First { leaves, largest: vec![0; 2 * leaves] },
            _ => Self::Best(BTreeSet::new()),
        }
    }

    /// Takes the window that a piece of `len` tokens goes to, with its room; `None` if no window has enough
    /// room.
    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        match self {
            Self::Best(rooms) => {
                let &(room, bin) = rooms.range((len, 0)..).next()?;
                rooms.remove(&(room, bin));
                Some((bin, room))
            }
            Self::First { leaves, largest } => {
                if largest[1] < len {
                    return None;
                }
                let mut node = 1;
                while node < *leaves {
                    node = if largest[2 * node] >= len { 2 * node } else { 2 * node + 1 };
                }
                Some((node - *leaves, largest[node]))
            }
        }
    }

    fn put(&mut self, bin: usize, room: usize) {
        match self {
            Self::Best(rooms) => {
                rooms.insert((room, bin));
            }
            Self::First { leaves, largest } => {
                let mut node = *leaves + bin;
                largest[node] = room;
                while node > 1 {
                    node /= 2;
                    largest[node] = largest[2 * node].max(largest[2 * node + 1]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_methods_choose_different_windows() {
        let packed = |lens: &[usize], window| {
            [PackMethod::FirstFit, PackMethod::BestFit].map(|method| pack(lens, window, method))
        };
        // By hand. 6, 6 and 5 open windows with room for 4, 4 and 5. The 4 goes to the first, the 2s to the
        // second.
        let both = vec![vec![0, 3], vec![1, 4, 5], vec![2]];
        assert_eq!(packed(&[6, 6, 5, 4, 2, 2], 10), [both.clone(), both]);
        // 7 and 5 leave room for 3 and 5; the 4 fits the second only, and leaves 1. The 1 goes to the first
        // window by first fit, and to the second by best fit.
        assert_eq!(packed(&[7, 5, 4, 1], 10), [vec![vec![0, 3], vec![1, 2]], vec![vec![0], vec![1, 2, 3]]]);
    }

    proptest! {
        #[test]
        fn each_piece_is_in_the_window_that_the_slow_rule_chooses(
            lens in prop::collection::vec(1usize..=16, 0..60), first: bool,
        ) {
            let method = if first { PackMethod::FirstFit } else { PackMethod::BestFit };
            let mut order: Vec<usize> = (0..lens.len()).collect();
            order.sort_by_key(|&piece| std::cmp::Reverse(lens[piece]));
            let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
            for piece in order {
                let mut fitting = bins.iter_mut().filter(|(room, _)| *room >= lens[piece]);
                let chosen = if first { fitting.next() } else { fitting.min_by_key(|(room, _)| *room) };
                match chosen {
                    Some((room, bin)) => (*room, _) = (*room - lens[piece], bin.push(piece)),
                    None => bins.push((16 - lens[piece], vec![piece])),
                }
            }
            let mut expected: Vec<Vec<usize>> = bins.into_iter().map(|(_, bin)| bin).collect();
            expected.iter_mut().for_each(|bin| bin.sort_unstable());
            prop_assert_eq!(pack(&lens, 16, method), expected);
        }
    }
}
