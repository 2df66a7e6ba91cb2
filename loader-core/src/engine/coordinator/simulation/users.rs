//! The simulated users of a loader, and the simulation itself, which chooses the next step at random.

use std::{
    mem,
    rc::Rc,
    time::{Duration, Instant},
};

use loader_ipc::slots::SlotPool;
use rand::{RngExt, rngs::ChaCha8Rng};

use super::{
    crew::Workers,
    invariants,
    iterator::{Iteration, Returned},
    received::Received,
    scenario::{MAX_WORKERS, Operation, Scenario, Setup, Users},
    shared::{Counts, Shared},
};
use crate::{error::Error, state::Position};

/// Maximum number of steps of a simulation.
const MAX_STEPS: u32 = 5_000_000;
/// Number of errors that end an iterator, after each of which the user resumes the epoch. After this number,
/// the simulation causes no more faults outside of user code.
const MAX_FATAL: u32 = 4;
/// Number of calls of `next` in a row that fail for lack of memory, after which a user ends the other
/// iterator. After twice as many, the user gives up the epoch.
const MAX_WITHOUT_MEMORY: u32 = 6;

/// A training loop over the loader: its current iterator, and what its user has received.
struct Training {
    number: usize,
    setup: Setup,
    iteration: Option<Iteration>,
    epoch: u64,
    /// The position at which the next iterator begins.
    position: Position,
    received: Received,
    /// Number of errors that have ended an iterator.
    fatal: u32,
    /// Number of calls of `next` in a row that have failed for lack of memory.
    without_memory: u32,
    /// Number of operations other than `next` that the user may still choose.
    changes_left: u32,
    is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UserState {
    /// The user does nothing for this many turns.
    Pausing(u32),
    /// The user waits in `next` of the iterator of this training.
    Waiting(usize),
    /// The user waits until the workers of this training begin another epoch.
    Resuming(usize),
}

struct User {
    number: usize,
    trainings: Vec<usize>,
    state: UserState,
}

pub(super) struct Simulation {
    scenario: Scenario,
    rng: ChaCha8Rng,
    shared: Rc<Shared>,
    slots: SlotPool,
    trainings: Vec<Training>,
    users: Vec<User>,
}

impl Simulation {
    pub(super) fn new(seed: u64, started: Instant, is_traced: bool) -> Self {
        let mut scenario = Scenario::draw(seed);
        let shared = Rc::new(Shared::new(started, is_traced));
        let slots = SlotPool::of_this_process(scenario.limit);
        let (trainings, users): (usize, &[&[usize]]) = match scenario.users {
            Users::One => (1, &[&[0]]),
            Users::OneOfTwo => (2, &[&[0, 1]]),
            Users::Two => (2, &[&[0], &[1]]),
        };
        shared.count(match scenario.users {
            Users::One => "one iterator",
            Users::OneOfTwo => "two iterators of one thread",
            Users::Two => "two iterators of two threads",
        });
        let trainings = (0..trainings).map(|number| Training::new(number, scenario.setup())).collect();
        let users = users.iter().enumerate().map(|(number, trainings)| User {
            number,
            trainings: trainings.to_vec(),
            state: UserState::Pausing(0),
        });
        let users = users.collect();
        let rng = mem::replace(&mut scenario.rng, rand::SeedableRng::seed_from_u64(seed ^ 1));
        Self { scenario, rng, shared, slots, trainings, users }
    }

    /// Runs until every user is done. Returns how often each thing has happened.
    pub(super) fn run(mut self) -> Counts {
        for step in 0..MAX_STEPS {
            self.users
                .retain(|user| user.trainings.iter().any(|&training| !self.trainings[training].is_done));
            if self.users.is_empty() {
                self.check_end();
                self.shared.count_many("steps", u64::from(step));
                drop((self.trainings, self.users));
                return Rc::into_inner(self.shared).expect("every iterator was dropped").into_counts();
            }
            self.step();
        }
        panic!("the users are not done after {MAX_STEPS} steps");
    }

    /// Does one step of a user, or of a worker.
    fn step(&mut self) {
        self.shared.advance(Duration::from_micros(self.rng.random_range(1..300)));
        let user = self.rng.random_range(0..self.users.len());
        let training = self.rng.random_range(0..self.trainings.len());
        let can_act = self.can_act(user);
        if can_act && self.rng.random_range(0..100) < 40 {
            return self.user_step(user);
        }
        let Training { setup, iteration, .. } = &mut self.trainings[training];
        if let Some(iteration) = iteration {
            iteration.step_workers(setup.faults);
        }
        if !can_act {
            self.skip_time();
        }
    }

    /// If nothing else can happen before a user wakes up, advances the clock to that time.
    fn skip_time(&self) {
        let can_step = |training: &Training| {
            training.iteration.as_ref().is_some_and(|iteration| iteration.workers.can_step())
        };
        if self.trainings.iter().any(can_step) || (0..self.users.len()).any(|user| self.can_act(user)) {
            return;
        }
        let wakes = self.users.iter().filter_map(|user| match user.state {
            UserState::Waiting(training) | UserState::Resuming(training) => {
                self.trainings[training].iteration.as_ref().map(Iteration::wake)
            }
            UserState::Pausing(_) => None,
        });
        if let Some(wake) = wakes.min() {
            self.shared.advance_to(wake);
        }
    }

    fn can_act(&self, user: usize) -> bool {
        match self.users[user].state {
            UserState::Pausing(_) => true,
            UserState::Waiting(training) | UserState::Resuming(training) => {
                self.trainings[training].iteration.as_ref().is_some_and(Iteration::can_act)
            }
        }
    }

    fn user_step(&mut self, user: usize) {
        match self.users[user].state {
            UserState::Pausing(0) => self.operate(user),
            UserState::Pausing(turns) => self.users[user].state = UserState::Pausing(turns - 1),
            UserState::Waiting(training) => {
                let iteration =
                    self.trainings[training].iteration.as_mut().expect("the user waits for this iterator");
                if let Some(returned) = iteration.act() {
                    self.users[user].state = UserState::Pausing(self.rng.random_range(0..10));
                    self.note(user, training, returned);
                }
            }
            UserState::Resuming(training) => self.resume_step(user, training),
        }
        let iterations = self.trainings.iter().filter_map(|training| training.iteration.as_ref());
        invariants::check(iterations, &self.slots, &self.shared);
    }

    /// Chooses one of the user's trainings and an operation on it, and begins the operation.
    fn operate(&mut self, user: usize) {
        let open: Vec<usize> = self.users[user]
            .trainings
            .iter()
            .copied()
            .filter(|&training| !self.trainings[training].is_done)
            .collect();
        let training = open[self.rng.random_range(0..open.len())];
        let thread = self.scenario.thread(self.users[user].number);
        let operation = match Operation::draw(&mut self.rng) {
            Operation::Next | Operation::DropBatch if self.trainings[training].iteration.is_none() => {
                Operation::Next
            }
            Operation::Abandon | Operation::Resume if self.trainings[training].changes_left == 0 => {
                Operation::Next
            }
            operation => operation,
        };
        match operation {
            Operation::Next => {
                self.open(user, training);
                self.trainings[training].iteration.as_mut().expect("`open` has made it").start_next(thread);
                self.users[user].state = UserState::Waiting(training);
            }
            Operation::DropBatch => self.drop_batch(training),
            Operation::Abandon => self.abandon(user, training),
            Operation::Resume => {
                self.shared.count("resumed elsewhere");
                self.trainings[training].changes_left -= 1;
                self.close(training);
            }
            Operation::SetWorkers => {
                let count = self.rng.random_range(1..=MAX_WORKERS);
                if let Some(iteration) = &mut self.trainings[training].iteration {
                    self.shared.count("changes of the number of workers");
                    let prefetch_factor = [1, 2, 3, 20][count % 4];
                    self.shared.log(|| {
                        format!(
                            "iterator {training} is set to {count} workers, prefetch factor {prefetch_factor}"
                        )
                    });
                    iteration.set_workers(count);
                    iteration.set_prefetch_factor(prefetch_factor);
                }
            }
            Operation::Pause => self.shared.advance(Duration::from_secs(11)),
            Operation::ResumeElsewhere => {
                let Training { setup, iteration, epoch, .. } = &self.trainings[training];
                if let Some(iteration) = iteration {
                    self.shared.count("states refused");
                    setup.check_refusal(*epoch, iteration.coordinator.position());
                }
            }
        }
    }

    /// Starts an iterator for a training that has none.
    fn open(&mut self, user: usize, training: usize) {
        let thread = self.scenario.thread(self.users[user].number);
        let Training { number, setup, iteration, epoch, position, received, .. } =
            &mut self.trainings[training];
        if iteration.is_some() {
            return;
        }
        received.resume();
        let options = setup.options(&mut self.rng);
        let supply = setup.supply(*epoch, position);
        let seed = self.rng.random();
        let workers = Workers::new(
            options.workers,
            *number,
            setup.dataset,
            &self.slots,
            &self.shared,
            seed,
            setup.has_memory_limit,
        );
        self.shared.log(|| format!("iterator {number} starts at {position:?} with {options:?}"));
        let new =
            Iteration::start(options, supply, &self.slots, setup.persistent, workers, &self.shared, thread);
        *iteration = Some(new);
    }

    /// Drops an iterator, and remembers the user's position.
    fn close(&mut self, training: usize) {
        let Training { iteration, position, .. } = &mut self.trainings[training];
        if let Some(iteration) = iteration.take() {
            *position = iteration.shut_down();
        }
    }

    fn drop_batch(&mut self, training: usize) {
        if let Some(iteration) = &mut self.trainings[training].iteration {
            iteration.drop_batch(&mut self.rng);
        }
    }

    fn end_epoch(&mut self, training: usize) {
        self.shared.count("whole epochs");
        let Training { iteration, received, .. } = &self.trainings[training];
        if let Some(Iteration { coordinator, .. }) = iteration {
            received.check_end(coordinator.is_over(), &coordinator.position());
        }
        self.finish(training);
    }

    /// Ends a training.
    fn finish(&mut self, training: usize) {
        if let Some(iteration) = self.trainings[training].iteration.take() {
            iteration.shut_down();
        }
        self.trainings[training].is_done = true;
    }

    /// Abandons an epoch, and begins the next one.
    fn abandon(&mut self, user: usize, training: usize) {
        let Training { setup, iteration, epoch, position, received, changes_left, .. } =
            &mut self.trainings[training];
        *changes_left -= 1;
        *epoch += 1;
        *position = Position::Start;
        *received = Received::new(setup.dataset, setup.in_order);
        if iteration.as_mut().is_some_and(|iteration| iteration.start_resuming(*epoch)) {
            self.users[user].state = UserState::Resuming(training);
        } else if let Some(iteration) = iteration.take() {
            iteration.shut_down();
        }
    }

    fn resume_step(&mut self, user: usize, training: usize) {
        let thread = self.scenario.thread(self.users[user].number);
        let Training { setup, iteration, epoch, .. } = &mut self.trainings[training];
        let Some(begun) = iteration.as_mut().and_then(Iteration::act_resuming) else { return };
        self.users[user].state = UserState::Pausing(0);
        match iteration {
            Some(iteration) if begun => {
                self.shared.count("epochs begun by the same workers");
                iteration.begin_epoch(setup.supply(*epoch, &Position::Start), &self.slots, thread);
            }
            // Some workers have not resumed in time, so other workers begin the epoch.
            _ => drop(iteration.take().map(Iteration::shut_down)),
        }
    }

    /// Handles what `next` has returned.
    fn note(&mut self, user: usize, training: usize, returned: Returned) {
        self.shared.log(|| format!("iterator {training} returns {returned:?}"));
        self.trainings[training].received.note(&returned);
        // A call that times out may have waited for memory.
        if matches!(returned, Returned::Batch(..) | Returned::Failed(..) | Returned::Nothing(_)) {
            self.trainings[training].without_memory = 0;
        }
        match returned {
            Returned::Batch(..) => {
                self.shared.count("batches");
                while self.trainings[training]
                    .iteration
                    .as_ref()
                    .is_some_and(|it| it.held() > self.scenario.max_held)
                {
                    self.drop_batch(training);
                }
            }
            Returned::Failed(..) => self.shared.count("batches that failed"),
            Returned::Nothing(_) => self.shared.count("batches without samples"),
            Returned::TimedOut => self.shared.count("timeouts"),
            Returned::End => self.end_epoch(training),
            Returned::NoMemory(error) => self.make_room(user, training, &error),
            Returned::Fatal(error) => {
                self.shared.count("errors that end an iterator");
                let Training { setup, fatal, .. } = &mut self.trainings[training];
                *fatal += 1;
                if *fatal > MAX_FATAL {
                    setup.end_faults();
                }
                let may_hang = setup.may_hang;
                let is_final = *fatal > if may_hang { 1 } else { 2 * MAX_FATAL };
                self.close(training);
                if is_final {
                    assert!(may_hang, "the user has resumed the epoch too often: {error}");
                    self.finish(training);
                }
            }
        }
    }

    /// Makes room in memory: drops a batch, or ends another iterator.
    fn make_room(&mut self, user: usize, training: usize, error: &Error) {
        self.shared.count("no memory for next");
        self.trainings[training].without_memory += 1;
        if self.trainings[training].iteration.as_ref().is_some_and(|iteration| iteration.held() > 0) {
            return self.drop_batch(training);
        }
        let others: Vec<usize> =
            self.users[user].trainings.iter().copied().filter(|&other| other != training).collect();
        let is_alone =
            self.trainings.iter().all(|other| other.number == training || other.iteration.is_none());
        assert!(
            !is_alone || !self.trainings[training].setup.has_enough_memory,
            "`next` has found no memory, although the user holds no batch: {error}"
        );
        if self.trainings[training].without_memory == MAX_WITHOUT_MEMORY {
            for other in others {
                self.shared.count("other iterators ended for memory");
                self.close(other);
            }
        } else if self.trainings[training].without_memory > 2 * MAX_WITHOUT_MEMORY {
            self.shared.count("epochs given up for memory");
            self.finish(training);
        }
    }

    /// Checks that every lease has ended, and that every batch was dropped.
    fn check_end(&self) {
        assert_eq!(self.slots.leases(), [], "a lease has not ended");
        assert_eq!((self.slots.held(), self.shared.memory.borrow().lent()), (0, 0), "a slot is still lent");
    }
}

impl Training {
    fn new(number: usize, setup: Setup) -> Self {
        Self {
            number,
            setup,
            iteration: None,
            epoch: 0,
            position: Position::Start,
            received: Received::new(setup.dataset, setup.in_order),
            fatal: 0,
            without_memory: 0,
            changes_left: 3,
            is_done: false,
        }
    }
}
