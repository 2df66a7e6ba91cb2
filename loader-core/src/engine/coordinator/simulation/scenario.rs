//! What a seed decides: the dataset, the options, the faults, and the operations of the users.

use std::{sync::LazyLock, thread, thread::ThreadId, time::Duration};

use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use super::{
    super::{Supply, WorkerOptions},
    crew::Faults,
    dataset::{Batches, Fault, SampleFaults, SimulatedDataset},
};
use crate::{
    data::{fetch::FetchOptions, random::Epoch},
    engine::{plan::Plan, shards::Shards},
    options::OnBadSample,
    state::{Position, State},
};

const MIB: u64 = 1 << 20;
/// Maximum number of workers.
pub(super) const MAX_WORKERS: usize = 5;

/// Threads that use iterators. Only their ids matter, so they have ended.
static THREADS: LazyLock<[ThreadId; 2]> = LazyLock::new(|| {
    let thread = || thread::spawn(|| thread::current().id()).join().expect("the thread does not panic");
    [thread(), thread()]
});

/// What a user does next with an iterator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Calls `next`.
    Next,
    /// Drops a batch.
    DropBatch,
    /// Abandons the epoch, and begins the next one: with the same workers, if they stay.
    Abandon,
    /// Drops the iterator, and resumes the epoch with another number of workers.
    Resume,
    /// Tries to resume the epoch as another rank, or with another world size.
    ResumeElsewhere,
    /// Changes the number of workers.
    SetWorkers,
    /// Does not call the loader for so long that main removes parked workers.
    Pause,
}

/// How often each operation is chosen.
const OPERATIONS: [(Operation, u32); 7] = [
    (Operation::Next, 200),
    (Operation::DropBatch, 30),
    (Operation::Abandon, 2),
    (Operation::Resume, 4),
    (Operation::ResumeElsewhere, 2),
    (Operation::SetWorkers, 12),
    (Operation::Pause, 5),
];

impl Operation {
    pub(super) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let sum = OPERATIONS.iter().map(|(_, weight)| weight).sum();
        let mut dice: u32 = rng.random_range(0..sum);
        for (operation, weight) in OPERATIONS {
            match dice.checked_sub(weight) {
                Some(rest) => dice = rest,
                None => return operation,
            }
        }
        unreachable!("the weights have this sum")
    }
}

/// Who uses the iterators of the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// One thread, one iterator.
    One,
    /// One thread that takes batches from two iterators.
    OneOfTwo,
    /// Two threads, each with an iterator.
    Two,
}

/// What happens to user code and to workers.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    faults: Faults,
    samples: &'static [Fault],
    sample_timeout: Option<Duration>,
    timeout: Option<Duration>,
    /// Number of deaths after which an iterator ends; 0 if dead workers are not replaced.
    max_worker_deaths: u32,
    hedges: bool,
}

/// Options that are drawn for a seed.
pub(super) struct Scenario {
    pub(super) rng: ChaCha8Rng,
    pub(super) users: Users,
    pub(super) limit: u64,
    pub(super) max_held: usize,
    in_order: bool,
    persistent: bool,
    shards: u32,
    trouble: Trouble,
    on_bad_sample: OnBadSample,
    max_size: u64,
    max_sure_size: u64,
    depends_on_worker: bool,
}

/// What a seed decides for one training.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) dataset: SimulatedDataset,
    pub(super) faults: Faults,
    pub(super) in_order: bool,
    pub(super) persistent: bool,
    pub(super) has_memory_limit: bool,
    /// True if a sample may hang without `sample_timeout`, so that only the user's `timeout` ends the wait.
    pub(super) may_hang: bool,
    /// True if the user can always get memory by dropping batches.
    pub(super) has_enough_memory: bool,
    trouble: Trouble,
}

impl Scenario {
    pub(super) fn draw(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let users = match rng.random_range(0..6) {
            0 => Users::OneOfTwo,
            1 => Users::Two,
            _ => Users::One,
        };
        let shards = if rng.random_range(0..3) == 0 { rng.random_range(1..6) } else { 0 };
        let in_order = rng.random_range(0..4) > 0;
        let trouble = Trouble::draw(&mut rng, shards > 0, users);
        let skips = shards == 0 && rng.random();
        let on_bad_sample = if skips { OnBadSample::Skip } else { OnBadSample::Error };
        let max_size = [50_000, 300_000, 1_500_000][rng.random_range(0..3)];
        let limit = match rng.random_range(0..10) {
            // Less than one first slot, some first slots, and no room for the largest batches.
            0 => rng.random_range(1..16) * 4096,
            1 => rng.random_range(2..6) * 65_536 + rng.random_range(0..2) * max_size,
            2 => max_size / 2 + 70_000,
            3..6 => max_size + 70_000,
            _ => 256 * MIB,
        };
        let is_short = limit < 256 * MIB;
        let depends_on_worker = rng.random_bool(0.1);
        // Little memory is enough where main can drop arrived batches and load them again.
        let can_drop = shards == 0 && in_order && users == Users::One && !depends_on_worker;
        let max_sure_size = if !is_short {
            u64::MAX
        } else if can_drop {
            limit.saturating_sub(70_000)
        } else {
            0
        };
        let max_held = if is_short { 1 } else { rng.random_range(1..5) };
        let persistent = rng.random();
        Self {
            rng,
            users,
            limit,
            max_held,
            in_order,
            persistent,
            shards,
            trouble,
            on_bad_sample,
            max_size,
            max_sure_size,
            depends_on_worker,
        }
    }

    /// Returns the setup of a dataset without faults, with ample memory. In `lies` of a thousand steps, a
    /// worker sends an invalid event.
    pub(super) fn plain(shards: u32, max_worker_deaths: u32, lies: u32) -> (Setup, WorkerOptions) {
        let mut scenario = Self::draw(0);
        (scenario.shards, scenario.max_size, scenario.max_sure_size) = (shards, 50_000, u64::MAX);
        (scenario.limit, scenario.in_order) = (256 * MIB, true);
        scenario.trouble = Trouble {
            faults: Faults { lies, ..Faults::default() },
            samples: &[],
            sample_timeout: None,
            timeout: None,
            max_worker_deaths,
            hedges: false,
        };
        let setup = scenario.setup();
        let options = setup.options(&mut scenario.rng);
        (setup, options)
    }

    /// Draws the dataset of a training.
    pub(super) fn setup(&mut self) -> Setup {
        let rng = &mut self.rng;
        let world_size = if rng.random_range(0..3) == 0 { rng.random_range(2..5) } else { 1 };
        let dataset = SimulatedDataset {
            seed: rng.random(),
            rank: rng.random_range(0..world_size),
            world_size,
            batches: rng.random_range(5..40),
            batch_size: rng.random_range(1..5),
            shards: self.shards,
            max_size: self.max_size,
            max_sure_size: self.max_sure_size,
            limit: self.limit,
            faults: SampleFaults { kinds: self.trouble.samples, every: rng.random_range(8..40) },
            on_bad_sample: self.on_bad_sample,
            loads_many: rng.random_range(0..3) == 0,
            depends_on_worker: self.depends_on_worker,
        };
        let Trouble { faults, samples, sample_timeout, max_worker_deaths, .. } = self.trouble;
        Setup {
            dataset,
            faults,
            in_order: self.in_order,
            persistent: self.persistent,
            has_memory_limit: max_worker_deaths > 0 && rng.random_range(0..8) == 0,
            may_hang: samples.contains(&Fault::Hangs) && sample_timeout.is_none(),
            has_enough_memory: self.max_sure_size > 0,
            trouble: self.trouble,
        }
    }

    pub(super) fn thread(&self, user: usize) -> ThreadId {
        THREADS[user]
    }
}

impl Trouble {
    fn draw(rng: &mut ChaCha8Rng, has_shards: bool, users: Users) -> Self {
        let faults = match rng.random_range(0..6) {
            0 => Faults::default(),
            1 => Faults { kills: 4, ..Faults::default() },
            2 => Faults { stops: 2, continues: 3, ..Faults::default() },
            3 => Faults { kills: 3, stops: 1, continues: 3, lies: 0 },
            4 => Faults { lies: 4, ..Faults::default() },
            _ => Faults { kills: 2, stops: 1, continues: 3, lies: 2 },
        };
        // The user calls `next` again after a timeout.
        let millis = [1, 20, 20, 300, 300, 300, 3000, 3000][rng.random_range(0..8)];
        let timeout = (rng.random_range(0..6) == 0).then_some(Duration::from_millis(millis));
        let none = Self {
            faults,
            samples: &[],
            sample_timeout: None,
            timeout,
            max_worker_deaths: if rng.random() { 3 } else { 1000 },
            hedges: rng.random(),
        };
        // A worker that is stopped in a sample counts as stuck in it.
        let unstopped = Faults { stops: 0, continues: 0, ..faults };
        let max_patience = if timeout.is_some() { 700 } else { 8000 };
        let patience = Duration::from_millis(rng.random_range(500..max_patience));
        match rng.random_range(0..10) {
            0 => Self { samples: &[Fault::Fails], ..none },
            1 => Self { samples: &[Fault::Fails, Fault::Crashes], ..none },
            2 if users == Users::One => Self {
                samples: &[Fault::Hangs, Fault::HangsOnce, Fault::Fails],
                sample_timeout: Some(patience),
                faults: unstopped,
                ..none
            },
            // The second attempt comes long before the sample counts as stuck.
            3 if users == Users::One && !has_shards => Self {
                samples: &[Fault::HangsOnce],
                sample_timeout: Some(Duration::from_secs(60)),
                faults: unstopped,
                timeout: None,
                hedges: true,
                ..none
            },
            // The iterator ends after many timeouts in which the worker makes no progress.
            4 if users == Users::One => Self {
                samples: &[Fault::Hangs],
                timeout: Some(Duration::from_millis(millis.max(6000))),
                faults: Faults::default(),
                ..none
            },
            // A worker that is stopped is not replaced.
            5 => Self { faults: unstopped, max_worker_deaths: 0, ..none },
            _ => none,
        }
    }
}

impl Setup {
    pub(super) fn options(&self, rng: &mut ChaCha8Rng) -> WorkerOptions {
        let Trouble { sample_timeout, timeout, max_worker_deaths, hedges, .. } = self.trouble;
        WorkerOptions {
            workers: rng.random_range(1..=MAX_WORKERS),
            max_workers: MAX_WORKERS,
            // With 20, one worker gets more tasks than main sends at once.
            prefetch_factor: [1, 2, 3, 20][rng.random_range(0..4)],
            in_order: self.in_order,
            timeout,
            warn_after: rng.random::<bool>().then_some(Duration::from_millis(500)),
            max_worker_deaths,
            fetch: FetchOptions { on_bad_sample: self.dataset.on_bad_sample, digest: false },
            sample_timeout,
            memory_limit: self.has_memory_limit.then_some(1 << 30),
            move_tasks: !self.dataset.depends_on_worker,
            hedge: hedges,
            processes: 1,
        }
    }

    /// Lets no more faults happen outside of user code.
    pub(super) fn end_faults(&mut self) {
        self.faults = Faults::default();
    }

    /// Returns the batches of an epoch from a position on.
    pub(super) fn supply(&self, epoch: u64, position: &Position) -> Supply {
        let plan = || Plan::new(&Batches(self.dataset), Epoch::new(0, epoch), self.dataset.dataset_len());
        match position {
            Position::Start if self.dataset.shards == 0 => Supply::batches(plan()),
            Position::Start => Supply::shards(Shards::new(epoch, self.dataset.layout())),
            Position::Batches(position) => Supply::batches_from(plan(), position).expect("the same batches"),
            Position::Remaining(_) => unreachable!("the simulation merges no states"),
            Position::Shards(position) => Supply::shards(
                Shards::resume(epoch, self.dataset.layout(), position).expect("the same shards"),
            ),
        }
    }

    /// Checks that a process with another rank and a process with another world size refuse the state.
    pub(super) fn check_refusal(&self, epoch: u64, position: Position) {
        let state = State::new(&self.dataset.origin(), epoch, 0, None, position);
        state.check(&self.dataset.origin()).expect("the same loader");
        let SimulatedDataset { rank, world_size, .. } = self.dataset;
        let larger = SimulatedDataset { world_size: world_size + 1, ..self.dataset };
        let next = SimulatedDataset { rank: (rank + 1) % world_size, ..self.dataset };
        for other in
            [larger, next].into_iter().filter(|other| (other.rank, other.world_size) != (rank, world_size))
        {
            state.check(&other.origin()).expect_err("another share of the samples");
        }
    }
}
