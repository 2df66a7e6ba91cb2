//! A deterministic simulation of the coordinator: simulated workers, clock and user, from one seed. Workers
//! are killed, stopped and continued at any step, memory is short, epochs are abandoned and resumed.
//!
//! After each step the simulation checks what must always hold: each batch comes once, in its place and with
//! its content; no slot is written while somebody reads it; tasks and bytes are bounded; no honest worker is
//! expelled; the user's `next` returns in bounded time; at the end every lease has come back.
//!
//! A failing seed is printed, and `SIMULATION_SEED=N cargo test -p loader-core simulation` runs it alone,
//! with a trace.

mod crew;

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use loader_ipc::slots::SlotPool;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use self::crew::Workers;
use super::{Coordinator, Next, Outcome, ShardEnd, Supply, WorkerOptions};
use crate::{
    error::Error,
    fetch::ShardLayout,
    options::OnBadSample,
    plan::Plan,
    sampler::{BatchSampler, Epoch},
    shards::Shards,
    state::Position,
};

/// Number of seeds that `cargo test` tries; `SIMULATION_SEEDS` has it try another number.
const SEEDS: u64 = 1000;
/// Maximum simulated time that a call of `next` may take. A worker that is stopped is replaced after 10
/// seconds.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Maximum number of steps of a call of `next`.
const MAX_STEPS: u32 = 200_000;
/// Maximum number of workers.
const MAX_WORKERS: usize = 5;

/// What a worker loads for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Samples { first: u64, len: u64 },
    Items { shard: u32, from: u64, to: u64 },
}

/// The dataset, and what it costs to load it.
#[derive(Debug, Clone, Copy)]
struct World {
    seed: u64,
    batches: u64,
    batch_size: u64,
    /// 0 for a map-style dataset.
    shards: u32,
    /// Maximum size of a batch, in bytes.
    max_size: u64,
}

impl World {
    fn hash(&self, values: [u64; 3]) -> u64 {
        let bytes: Vec<u8> =
            values.iter().chain([&self.seed]).flat_map(|value| value.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Size of a task's batch, in bytes. Some are far larger than the others.
    fn size(&self, epoch: u64, task: u64) -> u64 {
        let hash = self.hash([epoch, task, 1]);
        let max = if hash.is_multiple_of(5) { self.max_size } else { self.max_size.min(60_000) };
        1 + hash / 5 % max
    }

    /// Number of steps that a worker needs for a task.
    fn steps(&self, task: u64) -> u32 {
        let hash = self.hash([task, 0, 2]);
        if hash.is_multiple_of(16) { 40 } else { (hash / 16 % 4) as u32 }
    }

    /// True if the `start`th process that main starts later does not come up.
    fn fails_to_start(&self, start: u64) -> bool {
        self.hash([start, 0, 4]).is_multiple_of(8)
    }

    /// Number of items of a shard.
    fn shard_len(&self, shard: u32) -> u64 {
        self.hash([u64::from(shard), 0, 3]) % (self.batches / u64::from(self.shards) * self.batch_size + 1)
    }
}

#[derive(Debug)]
struct Batches(World);

impl BatchSampler for Batches {
    fn len(&self, _epoch: Epoch) -> usize {
        self.0.batches as usize
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let (batches, size) = (self.0.batches as usize, self.0.batch_size as usize);
        Box::new((0..batches).map(move |batch| (batch * size..(batch + 1) * size).collect()))
    }
}

/// A batch that the user holds.
struct Held {
    slot: u32,
    loan: Box<dyn Any>,
}

/// What may go wrong, in thousandths of the steps.
#[derive(Debug, Clone, Copy)]
struct Faults {
    kills: u32,
    stops: u32,
    continues: u32,
}

struct Simulation {
    rng: ChaCha8Rng,
    faults: Faults,
    workers: Workers,
    coordinator: Coordinator,
    slots: SlotPool,
    max_pending: usize,
    held: VecDeque<Held>,
    max_held: usize,
    /// Number of times that a worker may still be stopped. Three stops in one batch would have it given up.
    stops_left: u32,
    trace: bool,
    /// The user changes the number of workers.
    changes_workers: bool,
}

impl Simulation {
    fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", text());
        }
    }

    /// Lets simulated time pass, and the workers work, until main has a report or the time is `until`.
    fn run_until(&mut self, until: Instant) -> Option<loader_ipc::frame::Report> {
        loop {
            let ready = self.workers.with_reports();
            if !ready.is_empty() && self.rng.random_range(0..100) < 40 {
                let worker = ready[self.rng.random_range(0..ready.len())];
                let report = self.workers.report(worker);
                self.log(|| format!("main receives {report:?}"));
                return Some(report);
            }
            self.step();
            if self.workers.now >= until {
                return None;
            }
            let able = self.able();
            if able.is_empty() && self.workers.with_reports().is_empty() {
                self.workers.now = until;
                return None;
            }
        }
    }

    fn able(&self) -> Vec<usize> {
        (0..self.workers.all.len()).filter(|&worker| self.workers.all[worker].can_step()).collect()
    }

    /// One step of some worker, or a fault.
    fn step(&mut self) {
        self.workers.now += Duration::from_micros(self.rng.random_range(1..300));
        let worker = self.rng.random_range(0..self.workers.all.len());
        let Faults { kills, stops, continues } = self.faults;
        let dice = self.rng.random_range(0..1000);
        if dice < kills && self.workers.all[worker].runs {
            self.log(|| format!("worker {worker} is killed"));
            self.workers.end(worker);
        } else if dice < kills + stops && self.stops_left > 0 {
            self.stops_left -= 1;
            self.workers.all[worker].is_stopped = true;
        } else if dice < kills + stops + continues {
            self.workers.all[worker].is_stopped = false;
        } else if let able = self.able()
            && !able.is_empty()
        {
            let worker = able[self.rng.random_range(0..able.len())];
            self.workers.step(worker);
        }
        assert!(self.coordinator.schedule.len() <= self.max_pending, "too many tasks");
        assert!(self.slots.bytes() <= self.slots.limit(), "too many bytes");
    }

    /// The user's `next`: a batch's number and content.
    fn next(&mut self) -> Result<Option<(u64, Content)>, Error> {
        let started = self.workers.now;
        self.coordinator.start_wait(started);
        for _ in 0..MAX_STEPS {
            assert!(self.workers.now - started < MAX_WAIT, "next did not return: {:?}", self.coordinator);
            let now = self.workers.now;
            match self.coordinator.poll(now, &mut self.workers)? {
                Next::End => return Ok(None),
                Next::Return => return self.take().map(Some),
                Next::Receive { until, .. } => {
                    if let Some(report) = self.run_until(until) {
                        let now = self.workers.now;
                        self.coordinator.handle(report, now, &mut self.workers)?;
                    }
                }
            }
        }
        panic!("next did not return: {:?}", self.coordinator);
    }

    /// Takes the batch that has arrived, as `WorkerIter` does.
    fn take(&mut self) -> Result<(u64, Content), Error> {
        let (taken, outcome) = self.coordinator.take_next().expect("poll has said so");
        let (number, end, content) = match outcome {
            Outcome::Batch { lease, encoded, held, position, .. } => {
                let loan =
                    self.coordinator.slots().lend(lease, encoded.len, held).expect("the lease is valid");
                let content = self.workers.memory.lend(lease.slot);
                self.held.push_back(Held { slot: lease.slot, loan: Box::new(loan) });
                let end = ShardEnd { position, ..ShardEnd::default() };
                (taken.batch(), end, Ok(content))
            }
            Outcome::Failed { failure, position, ended } => {
                let end = ShardEnd { position, snapshot: None, is_last: ended };
                let worker = taken.worker();
                (taken.batch(), end, Err(Error::from_failure(*failure, taken.batch(), Some(worker))))
            }
            Outcome::Lost(error) => {
                (taken.batch(), ShardEnd { is_last: true, ..ShardEnd::default() }, Err(*error))
            }
            Outcome::AllSamplesBad { .. } => unreachable!("no sample is bad"),
        };
        self.coordinator.returned(taken, end, Vec::new());
        let now = self.workers.now;
        let sent = self.coordinator.send_tasks(now, &mut self.workers);
        assert!(sent.err().is_none_or(|error| !error.ends_iteration()));
        content.map(|content| (number, content))
    }

    /// Drops the batch that the user has held for longest.
    fn drop_oldest(&mut self) {
        if let Some(Held { slot, loan }) = self.held.pop_front() {
            self.workers.memory.take_back(slot);
            drop(loan);
        }
    }

    /// Ends the workers, and checks that every lease comes back.
    fn shut_down(mut self) {
        (0..self.workers.all.len()).for_each(|worker| self.workers.end(worker));
        for (_, lease) in self.coordinator.take_leases() {
            self.coordinator.slots().release(lease, false);
        }
        while !self.held.is_empty() {
            self.drop_oldest();
        }
        let other = self.slots.of_iterator();
        assert_eq!(other.used_by_other_iterators(), 0, "a lease is lost");
    }
}

/// An epoch in progress: what the user has got.
#[derive(Debug, Default)]
struct Got {
    batches: BTreeMap<u64, Content>,
    order: Vec<Content>,
}

impl Got {
    fn note(&mut self, number: u64, content: Content) {
        let before = self.batches.insert(number, content);
        assert_eq!(before, None, "batch {number} came twice");
        self.order.push(content);
    }

    fn check(&self, world: &World, in_order: bool) {
        match world.shards {
            0 => {
                let expected = (0..world.batches)
                    .map(|batch| Content::Samples { first: batch * world.batch_size, len: world.batch_size });
                assert!(self.batches.values().copied().eq(expected), "a batch is missing or wrong: {self:?}");
                if in_order {
                    assert!(self.order.iter().eq(self.batches.values()), "the order is wrong: {self:?}");
                }
            }
            shards => {
                (0..shards).for_each(|shard| self.check_shard(world, shard));
                if in_order {
                    assert!(self.order.iter().copied().eq(turns(world)), "the order is wrong: {self:?}");
                }
            }
        }
    }

    fn check_shard(&self, world: &World, shard: u32) {
        let mut next = 0;
        for content in &self.order {
            match *content {
                Content::Items { shard: of, from, to } if of == shard => {
                    assert_eq!(from, next, "shard {shard} has a gap or came twice: {self:?}");
                    next = to;
                }
                _ => {}
            }
        }
        assert_eq!(next, world.shard_len(shard), "the end of shard {shard} is missing: {self:?}");
    }
}

/// The batches of an iterable dataset in order: the shards take turns.
fn turns(world: &World) -> Vec<Content> {
    let mut read = vec![0; world.shards as usize];
    let mut order = Vec::new();
    loop {
        let before = order.len();
        for (shard, from) in (0..world.shards).zip(&mut read) {
            let to = (*from + world.batch_size).min(world.shard_len(shard));
            if *from < to {
                order.push(Content::Items { shard, from: *from, to });
            }
            *from = to;
        }
        if order.len() == before {
            return order;
        }
    }
}

/// Options that are drawn for a seed.
struct Scenario {
    rng: ChaCha8Rng,
    world: World,
    faults: Faults,
    in_order: bool,
    hedge: bool,
    limit: u64,
    max_held: usize,
    base: Instant,
}

impl Scenario {
    fn draw(seed: u64, base: Instant) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let shards = if rng.random_range(0..3) == 0 { rng.random_range(1..6) } else { 0 };
        let max_size = [50_000, 300_000, 1_500_000][rng.random_range(0..3)];
        let world = World {
            seed,
            batches: rng.random_range(5..40),
            batch_size: rng.random_range(1..5),
            shards,
            max_size,
        };
        let faults = match rng.random_range(0..4) {
            0 => Faults { kills: 0, stops: 0, continues: 0 },
            1 => Faults { kills: 4, stops: 0, continues: 0 },
            2 => Faults { kills: 0, stops: 2, continues: 3 },
            _ => Faults { kills: 3, stops: 1, continues: 3 },
        };
        let in_order = rng.random_range(0..4) > 0;
        // Where batches can be dropped and loaded again, little memory is enough.
        let is_tight = shards == 0 && in_order && rng.random();
        let limit = if is_tight { max_size + 70_000 } else { 64 << 20 };
        let max_held = if is_tight { 1 } else { rng.random_range(1..5) };
        let hedge = rng.random();
        Self { rng, world, faults, in_order, hedge, limit, max_held, base }
    }

    fn options(&mut self) -> WorkerOptions {
        WorkerOptions {
            workers: self.rng.random_range(1..=MAX_WORKERS),
            prefetch_factor: self.rng.random_range(1..4),
            in_order: self.in_order,
            timeout: None,
            warn_after: None,
            max_worker_deaths: 1000,
            on_bad_sample: OnBadSample::Error,
            sample_timeout: None,
            memory_limit: None,
            hedge: self.hedge,
        }
    }

    fn supply(&self, epoch: u64, place: Option<&Position>) -> Supply {
        let World { shards, batch_size, batches, .. } = self.world;
        let samples = (batches * batch_size) as usize;
        let cut = ShardLayout {
            shards: shards as usize,
            first_shard: 0,
            all_shards: shards as usize,
            batch_size: batch_size as usize,
            drop_last: false,
        };
        let plan = || Plan::new(&Batches(self.world), Epoch::new(0, epoch), samples);
        match place {
            None if shards == 0 => Supply::batches(plan()),
            None | Some(Position::Start) => Supply::shards(Shards::new(epoch, cut)),
            Some(Position::Batches(place)) => Supply::batches_from(plan(), place),
            Some(Position::Shards(place)) => {
                Supply::shards(Shards::resume(epoch, cut, place).expect("the same cut"))
            }
        }
    }

    /// Starts workers for an epoch.
    fn start(&mut self, epoch: u64, place: Option<&Position>, slots: &SlotPool, stays: bool) -> Simulation {
        let options = self.options();
        let mut workers = Workers::new(options.workers, self.world, slots, self.base);
        let max_pending = MAX_WORKERS * options.prefetch_factor;
        let supply = self.supply(epoch, place);
        let mut coordinator = Coordinator::new(options, supply, slots, stays, self.base, &workers);
        let sent = coordinator.send_tasks(self.base, &mut workers);
        assert!(sent.err().is_none_or(|error| !error.ends_iteration()));
        Simulation {
            rng: ChaCha8Rng::seed_from_u64(self.rng.random()),
            faults: self.faults,
            workers,
            coordinator,
            slots: slots.clone(),
            max_pending,
            held: VecDeque::new(),
            max_held: self.max_held,
            stops_left: 2,
            trace: env::var_os("SIMULATION_SEED").is_some(),
            changes_workers: self.rng.random(),
        }
    }
}

/// Loads until the end of the epoch, or until the user has got `most` batches. True at the end.
fn load(simulation: &mut Simulation, got: &mut Got, most: u64) -> bool {
    for _ in 0..most {
        match simulation.next() {
            Ok(None) => return true,
            Ok(Some((number, content))) => {
                simulation.log(|| format!("the user gets batch {number}: {content:?}"));
                got.note(number, content);
            }
            Err(Error::SharedMemoryExhausted { problem }) => {
                assert!(!simulation.held.is_empty(), "the user can drop nothing: {problem}");
                simulation.held.len().checked_sub(1).into_iter().for_each(|_| simulation.drop_oldest());
            }
            Err(error) => panic!("{error}"),
        }
        while simulation.held.len() > simulation.max_held {
            simulation.drop_oldest();
        }
        change_workers(simulation);
        // The user's own time.
        for _ in 0..simulation.rng.random_range(0..30) {
            simulation.step();
        }
    }
    false
}

/// Now and then, changes the number of workers, or lets time pass after which parked workers are removed.
fn change_workers(simulation: &mut Simulation) {
    if !simulation.changes_workers {
        return;
    }
    match simulation.rng.random_range(0..8) {
        0 | 1 => {
            let count = simulation.rng.random_range(1..=MAX_WORKERS);
            simulation.log(|| format!("the user sets {count} workers"));
            let Simulation { coordinator, workers, .. } = simulation;
            let now = workers.now;
            coordinator.set_workers(count, now, workers).expect("it cannot fail here");
        }
        2 => simulation.workers.now += Duration::from_secs(11),
        _ => {}
    }
}

/// Abandons the epoch and begins another one with the same workers. False if they cannot go on.
fn rest_and_resume(simulation: &mut Simulation, epoch: u64, supply: Supply) -> bool {
    let Simulation { coordinator, workers, .. } = simulation;
    if !coordinator.can_rest(workers) {
        return false;
    }
    coordinator.rest(workers);
    for _ in 0..simulation.rng.random_range(0..30) {
        simulation.step();
    }
    let Simulation { coordinator, workers, .. } = simulation;
    coordinator.start_resuming(epoch, workers).expect("it cannot fail here");
    for _ in 0..MAX_STEPS {
        if simulation.coordinator.not_resumed().is_none() {
            let Simulation { coordinator, workers, slots, .. } = simulation;
            coordinator.begin_epoch(supply, slots, workers.now, workers);
            let now = workers.now;
            drop(coordinator.send_tasks(now, workers));
            return true;
        }
        let until = simulation.workers.now + Duration::from_secs(1);
        if let Some(report) = simulation.run_until(until) {
            let now = simulation.workers.now;
            match simulation.coordinator.handle(report, now, &mut simulation.workers) {
                Ok(()) => {}
                Err(Error::System { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        if simulation.workers.all.iter().any(|worker| worker.is_stopped) {
            // In a program the deadline ends it.
            return false;
        }
    }
    panic!("the workers do not resume: {:?}", simulation.coordinator);
}

/// Runs the scenario of a seed.
fn run(seed: u64, base: Instant) {
    let mut scenario = Scenario::draw(seed, base);
    let slots = SlotPool::of_this_process(scenario.limit);
    let stays = scenario.rng.random();
    let mut simulation = scenario.start(0, None, &slots, stays);
    let (mut epoch, mut got) = (0, Got::default());
    for _ in 0..3 {
        let most = scenario.rng.random_range(0..scenario.world.batches + 1);
        let is_over = load(&mut simulation, &mut got, most);
        if is_over {
            got.check(&scenario.world, scenario.in_order);
            break;
        }
        if stays && scenario.rng.random() {
            // The epoch is abandoned, and another one begins.
            epoch += 1;
            let supply = scenario.supply(epoch, None);
            if rest_and_resume(&mut simulation, epoch, supply) {
                got = Got::default();
                continue;
            }
            simulation.shut_down();
            simulation = scenario.start(epoch, None, &slots, stays);
            got = Got::default();
            continue;
        }
        // Other workers resume the epoch.
        let place = simulation.coordinator.place();
        simulation.shut_down();
        let Some(place) = place else {
            got.check(&scenario.world, scenario.in_order);
            return;
        };
        simulation = scenario.start(epoch, Some(&place), &slots, stays);
    }
    if load(&mut simulation, &mut got, u64::MAX) {
        got.check(&scenario.world, scenario.in_order);
    }
    simulation.shut_down();
}

#[test]
fn any_seed_gives_each_batch_once() {
    let base = Instant::now();
    if let Some(seed) = env::var("SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed, base);
    }
    let seeds = env::var("SIMULATION_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed, base))) {
            eprintln!("seed {seed} failed: run it again with SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
