//! Where an epoch begins. PyTorch's epochs take their numbers from one generator, one after the other: what an epoch draws depends
//! on how much those before it took. Here it is left out instead of drawn, so that an epoch needs nothing but its number.

use std::sync::{Mutex, PoisonError};

use super::Generator;

/// Longest way that is walked again each time.
const SHORT: u128 = 1 << 16;
/// Places that are remembered.
const MARKS: usize = 8;

/// A generator that has come some way, so that the next epoch's beginning is not far.
struct Mark {
    seed: u64,
    draws: u128,
    generator: Generator,
}

static MARKS_OF_LATE: Mutex<Vec<Mark>> = Mutex::new(Vec::new());

/// The generator that was seeded with `seed`, as epoch `number` finds it: each epoch takes `draws`.
pub(crate) fn at_epoch(seed: u64, number: u64, draws: u64) -> Generator {
    let target = u128::from(number) * u128::from(draws);
    if target <= SHORT {
        let mut generator = Generator::new(seed);
        generator.skip(target);
        return generator;
    }
    let (mut generator, passed) = nearest(seed, target).unwrap_or_else(|| (Generator::new(seed), 0));
    generator.skip(target - passed);
    remember(Mark { seed, draws: target, generator: generator.clone() });
    generator
}

/// The last place before `target` that is remembered.
fn nearest(seed: u64, target: u128) -> Option<(Generator, u128)> {
    let marks = MARKS_OF_LATE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = marks.iter().filter(|mark| mark.seed == seed && mark.draws <= target);
    before.max_by_key(|mark| mark.draws).map(|mark| (mark.generator.clone(), mark.draws))
}

fn remember(mark: Mark) {
    let mut marks = MARKS_OF_LATE.lock().unwrap_or_else(PoisonError::into_inner);
    marks.retain(|other| (other.seed, other.draws) != (mark.seed, mark.draws));
    if marks.len() == MARKS {
        marks.remove(0);
    }
    marks.push(mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_begins_where_the_one_before_it_ended() {
        // Short ways and long ones, forwards and backwards.
        for (draws, epochs) in [(2, [0u64, 1, 7, 3]), (39, [2, 0, 5000, 100]), (100_000, [3, 1, 12, 2])] {
            for seed in [0, 42] {
                for epoch in epochs {
                    let mut walked = Generator::new(seed);
                    (0..epoch * draws).for_each(|_| {
                        walked.random();
                    });
                    assert_eq!(
                        at_epoch(seed, epoch, draws).random64(),
                        walked.random64(),
                        "{seed} {epoch} {draws}"
                    );
                }
            }
        }
    }
}
