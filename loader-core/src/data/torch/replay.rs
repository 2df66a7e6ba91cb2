//! The generator at the beginning of an epoch. In PyTorch, all epochs draw from one generator, one after the
//! other, so the numbers of an epoch depend on how many draws the epochs before it took. This module skips
//! these draws, so that an epoch can start without the epochs before it.

use std::sync::{Mutex, PoisonError};

use super::{BASE_SEED_DRAWS, Generator};
use crate::{data::random::Epoch, options::Order};

/// Maximum number of draws that are skipped from the seed each time, without the cache.
const MAX_UNCACHED: u128 = 1 << 16;
/// Maximum number of generators in the cache.
const MAX_CACHED: usize = 8;

/// A generator that has taken `draws` draws, so that the next epoch need not skip them again.
struct Mark {
    seed: u64,
    draws: u128,
    generator: Generator,
}

/// The generators that were computed last, oldest first.
static CACHE: Mutex<Vec<Mark>> = Mutex::new(Vec::new());

/// Returns the generator with the seed `seed` at the beginning of epoch `number`, if each epoch takes `draws`
/// draws.
pub(crate) fn at_epoch(seed: u64, number: u64, draws: u64) -> Generator {
    after(seed, u128::from(number) * u128::from(draws))
}

/// Returns the base seed of an epoch's workers, and the generator from which a sampler then takes `draws` draws, if it
/// shares the loader's generator. PyTorch draws the base seed when it starts the workers: in each epoch, or with
/// persistent workers before the first one.
pub(crate) fn of_loader(epoch: Epoch, draws: u64) -> (u64, Generator) {
    let (number, draws, of_seed) = (u128::from(epoch.number), u128::from(draws), u128::from(BASE_SEED_DRAWS));
    if epoch.order == Order::TorchPersistent {
        let base_seed = Generator::new(epoch.seed).base_seed();
        return (base_seed, after(epoch.seed, of_seed + number * draws));
    }
    let mut generator = after(epoch.seed, number * (of_seed + draws));
    (generator.base_seed(), generator)
}

/// Returns the generator with the seed `seed` after `target` draws.
fn after(seed: u64, target: u128) -> Generator {
    if target <= MAX_UNCACHED {
        let mut generator = Generator::new(seed);
        generator.skip(target);
        return generator;
    }
    let (mut generator, skipped) = nearest(seed, target).unwrap_or_else(|| (Generator::new(seed), 0));
    generator.skip(target - skipped);
    cache(Mark { seed, draws: target, generator: generator.clone() });
    generator
}

/// Returns the cached generator that has taken the most draws up to `target`, and their number.
fn nearest(seed: u64, target: u128) -> Option<(Generator, u128)> {
    let marks = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = marks.iter().filter(|mark| mark.seed == seed && mark.draws <= target);
    before.max_by_key(|mark| mark.draws).map(|mark| (mark.generator.clone(), mark.draws))
}

fn cache(mark: Mark) {
    let mut marks = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    marks.retain(|other| (other.seed, other.draws) != (mark.seed, mark.draws));
    if marks.len() == MAX_CACHED {
        marks.remove(0);
    }
    marks.push(mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_begins_where_the_previous_one_ended() {
        // Few draws and many, epochs in increasing and in decreasing order.
        for (draws, epochs) in [(2, [0u64, 1, 7, 3]), (39, [2, 0, 5000, 100]), (100_000, [3, 1, 12, 2])] {
            for seed in [0, 42] {
                for epoch in epochs {
                    let mut drawn = Generator::new(seed);
                    (0..epoch * draws).for_each(|_| {
                        drawn.random();
                    });
                    assert_eq!(
                        at_epoch(seed, epoch, draws).random64(),
                        drawn.random64(),
                        "{seed} {epoch} {draws}"
                    );
                }
            }
        }
    }
}
