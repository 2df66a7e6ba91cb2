//! The users of a loader's iterators, and the order in which everything happens.

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
    scenario::{MAX_WORKERS, Operation, Plot, Scenario, Users},
    shared::{Counts, Shared},
};
use crate::state::Position;

/// Maximum number of steps of a simulation.
const MAX_STEPS: u32 = 5_000_000;
/// Number of times that a user resumes an epoch after an error that ends the iterator. Then nothing goes
/// wrong any more.
const MAX_FATAL: u32 = 4;
/// Number of calls of `next` in a row that get no memory, after which a user ends the other iterator, and
/// after as many more calls gives up the epoch.
const MAX_WITHOUT_MEMORY: u32 = 6;

/// One iterator, with what its user knows of it.
struct Seat {
    number: usize,
    plot: Plot,
    iteration: Option<Iteration>,
    epoch: u64,
    /// Where the next iterator begins.
    place: Position,
    received: Received,
    fatal: u32,
    without_memory: u32,
    /// Number of operations other than `next` that the user may still choose.
    changes_left: u32,
    is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Goes on after this many turns.
    Thinking(u32),
    /// Waits in `next` of the iterator of this seat.
    Waiting(usize),
    /// Waits until the workers of this seat begin another epoch.
    Resuming(usize),
}

struct User {
    number: usize,
    seats: Vec<usize>,
    doing: Doing,
}

pub(super) struct Simulation {
    scenario: Scenario,
    rng: ChaCha8Rng,
    shared: Rc<Shared>,
    slots: SlotPool,
    seats: Vec<Seat>,
    users: Vec<User>,
}

impl Simulation {
    pub(super) fn new(seed: u64, started: Instant, is_traced: bool) -> Self {
        let mut scenario = Scenario::draw(seed);
        let shared = Rc::new(Shared::new(started, is_traced));
        let slots = SlotPool::of_this_process(scenario.limit);
        let (seats, users): (usize, &[&[usize]]) = match scenario.users {
            Users::One => (1, &[&[0]]),
            Users::OneOfTwo => (2, &[&[0, 1]]),
            Users::Two => (2, &[&[0], &[1]]),
        };
        shared.count(match scenario.users {
            Users::One => "one iterator",
            Users::OneOfTwo => "two iterators of one thread",
            Users::Two => "two iterators of two threads",
        });
        let seats = (0..seats).map(|number| Seat::new(number, scenario.plot())).collect();
        let users = users.iter().enumerate().map(|(number, seats)| User {
            number,
            seats: seats.to_vec(),
            doing: Doing::Thinking(0),
        });
        let users = users.collect();
        let rng = mem::replace(&mut scenario.rng, rand::SeedableRng::seed_from_u64(seed ^ 1));
        Self { scenario, rng, shared, slots, seats, users }
    }

    /// Runs until every user is done. Returns what has happened.
    pub(super) fn run(mut self) -> Counts {
        for step in 0..MAX_STEPS {
            self.users.retain(|user| user.seats.iter().any(|&seat| !self.seats[seat].is_done));
            if self.users.is_empty() {
                self.check_end();
                self.shared.count_many("steps", u64::from(step));
                drop((self.seats, self.users));
                return Rc::into_inner(self.shared).expect("no iterator is left").into_counts();
            }
            self.step();
        }
        panic!("the users do not get to the end");
    }

    /// One step of a user, or of a worker of some iterator.
    fn step(&mut self) {
        self.shared.advance(Duration::from_micros(self.rng.random_range(1..300)));
        let user = self.rng.random_range(0..self.users.len());
        let seat = self.rng.random_range(0..self.seats.len());
        let can_act = self.can_act(user);
        if can_act && self.rng.random_range(0..100) < 40 {
            return self.user_step(user);
        }
        let Seat { plot, iteration, .. } = &mut self.seats[seat];
        if let Some(iteration) = iteration {
            iteration.step_workers(plot.faults);
        }
        if !can_act {
            self.skip_time();
        }
    }

    /// Advances the clock to the next thing that happens, if that is a user who wakes up.
    fn skip_time(&self) {
        let works =
            |seat: &Seat| seat.iteration.as_ref().is_some_and(|iteration| iteration.workers.can_step());
        if self.seats.iter().any(works) || (0..self.users.len()).any(|user| self.can_act(user)) {
            return;
        }
        let wakes = self.users.iter().filter_map(|user| match user.doing {
            Doing::Waiting(seat) | Doing::Resuming(seat) => {
                self.seats[seat].iteration.as_ref().map(Iteration::wake)
            }
            Doing::Thinking(_) => None,
        });
        if let Some(wake) = wakes.min() {
            self.shared.advance_to(wake);
        }
    }

    fn can_act(&self, user: usize) -> bool {
        match self.users[user].doing {
            Doing::Thinking(_) => true,
            Doing::Waiting(seat) | Doing::Resuming(seat) => {
                self.seats[seat].iteration.as_ref().is_some_and(Iteration::can_act)
            }
        }
    }

    fn user_step(&mut self, user: usize) {
        match self.users[user].doing {
            Doing::Thinking(0) => self.operate(user),
            Doing::Thinking(turns) => self.users[user].doing = Doing::Thinking(turns - 1),
            Doing::Waiting(seat) => {
                let iteration = self.seats[seat].iteration.as_mut().expect("the user waits for it");
                if let Some(returned) = iteration.act() {
                    self.users[user].doing = Doing::Thinking(self.rng.random_range(0..10));
                    self.note(user, seat, returned);
                }
            }
            Doing::Resuming(seat) => self.resume_step(user, seat),
        }
        let iterations = self.seats.iter().filter_map(|seat| seat.iteration.as_ref());
        invariants::check(iterations, &self.slots, &self.shared);
    }

    /// Does what the user does next with one of the iterators.
    fn operate(&mut self, user: usize) {
        let open: Vec<usize> =
            self.users[user].seats.iter().copied().filter(|&seat| !self.seats[seat].is_done).collect();
        let seat = open[self.rng.random_range(0..open.len())];
        let thread = self.scenario.thread(self.users[user].number);
        let operation = match Operation::draw(&mut self.rng) {
            Operation::Next | Operation::DropBatch if self.seats[seat].iteration.is_none() => Operation::Next,
            Operation::Abandon | Operation::Resume if self.seats[seat].changes_left == 0 => Operation::Next,
            operation => operation,
        };
        match operation {
            Operation::Next => {
                self.open(user, seat);
                self.seats[seat].iteration.as_mut().expect("it was opened").start_next(thread);
                self.users[user].doing = Doing::Waiting(seat);
            }
            Operation::DropBatch => self.drop_batch(seat),
            Operation::Abandon => self.abandon(user, seat),
            Operation::Resume => {
                self.shared.count("resumed elsewhere");
                self.seats[seat].changes_left -= 1;
                self.close(seat);
            }
            Operation::SetWorkers => {
                let count = self.rng.random_range(1..=MAX_WORKERS);
                if let Some(iteration) = &mut self.seats[seat].iteration {
                    self.shared.count("changes of the number of workers");
                    self.shared.log(|| format!("iterator {seat} is set to {count} workers"));
                    iteration.set_workers(count);
                }
            }
            Operation::Pause => self.shared.advance(Duration::from_secs(11)),
            Operation::ResumeElsewhere => {
                let Seat { plot, iteration, epoch, .. } = &self.seats[seat];
                if let Some(place) = iteration.as_ref().and_then(|iteration| iteration.coordinator.place()) {
                    self.shared.count("states refused");
                    plot.check_refusal(*epoch, place);
                }
            }
        }
    }

    /// Starts workers for a seat that has none.
    fn open(&mut self, user: usize, seat: usize) {
        let thread = self.scenario.thread(self.users[user].number);
        let Seat { number, plot, iteration, epoch, place, .. } = &mut self.seats[seat];
        if iteration.is_some() {
            return;
        }
        let options = plot.options(&mut self.rng);
        let supply = plot.supply(*epoch, place);
        let seed = self.rng.random();
        let workers = Workers::new(
            options.workers,
            *number,
            plot.world,
            &self.slots,
            &self.shared,
            seed,
            plot.has_memory_limit,
        );
        self.shared.log(|| format!("iterator {number} starts at {place:?} with {options:?}"));
        let new =
            Iteration::start(options, supply, &self.slots, plot.persistent, workers, &self.shared, thread);
        *iteration = Some(new);
    }

    /// Drops an iterator, and remembers the user's place.
    fn close(&mut self, seat: usize) {
        let Seat { iteration, place, .. } = &mut self.seats[seat];
        if let Some(iteration) = iteration.take() {
            match iteration.shut_down() {
                Some(reached) => *place = reached,
                // The user has every batch.
                None => self.end_epoch(seat),
            }
        }
    }

    fn drop_batch(&mut self, seat: usize) {
        if let Some(iteration) = &mut self.seats[seat].iteration {
            iteration.drop_batch(&mut self.rng);
        }
    }

    fn end_epoch(&mut self, seat: usize) {
        self.shared.count("whole epochs");
        self.seats[seat].received.check_end();
        self.finish(seat);
    }

    /// The user is done with an iterator.
    fn finish(&mut self, seat: usize) {
        if let Some(iteration) = self.seats[seat].iteration.take() {
            iteration.shut_down();
        }
        self.seats[seat].is_done = true;
    }

    /// Abandons an epoch, and begins the next one.
    fn abandon(&mut self, user: usize, seat: usize) {
        let Seat { plot, iteration, epoch, place, received, changes_left, .. } = &mut self.seats[seat];
        *changes_left -= 1;
        *epoch += 1;
        *place = Position::Start;
        *received = Received::new(plot.world, plot.in_order);
        if iteration.as_mut().is_some_and(|iteration| iteration.start_resuming(*epoch)) {
            self.users[user].doing = Doing::Resuming(seat);
        } else if let Some(iteration) = iteration.take() {
            iteration.shut_down();
        }
    }

    fn resume_step(&mut self, user: usize, seat: usize) {
        let thread = self.scenario.thread(self.users[user].number);
        let Seat { plot, iteration, epoch, .. } = &mut self.seats[seat];
        let Some(begun) = iteration.as_mut().and_then(Iteration::act_resuming) else { return };
        self.users[user].doing = Doing::Thinking(0);
        match iteration {
            Some(iteration) if begun => {
                self.shared.count("epochs begun by the same workers");
                iteration.begin_epoch(plot.supply(*epoch, &Position::Start), &self.slots, thread);
            }
            // Other workers begin it.
            _ => drop(iteration.take().map(Iteration::shut_down)),
        }
    }

    /// Notes what `next` has returned.
    fn note(&mut self, user: usize, seat: usize, returned: Returned) {
        self.shared.log(|| format!("iterator {seat} returns {returned:?}"));
        self.seats[seat].received.note(&returned);
        // A call that times out may have waited for memory.
        if matches!(returned, Returned::Batch(..) | Returned::Failed(..) | Returned::Nothing(_)) {
            self.seats[seat].without_memory = 0;
        }
        match returned {
            Returned::Batch(..) => {
                self.shared.count("batches");
                while self.seats[seat].iteration.as_ref().is_some_and(|it| it.held() > self.scenario.max_held)
                {
                    self.drop_batch(seat);
                }
            }
            Returned::Failed(..) => self.shared.count("batches that failed"),
            Returned::Nothing(_) => self.shared.count("batches without samples"),
            Returned::TimedOut => self.shared.count("timeouts"),
            Returned::End => self.end_epoch(seat),
            Returned::NoMemory(problem) => self.make_room(user, seat, &problem),
            Returned::Fatal(error) => {
                self.shared.count("errors that end an iterator");
                let Seat { plot, fatal, .. } = &mut self.seats[seat];
                *fatal += 1;
                if *fatal > MAX_FATAL {
                    plot.calm();
                }
                let may_hang = plot.may_hang;
                let is_final = *fatal > if may_hang { 1 } else { 2 * MAX_FATAL };
                self.close(seat);
                if is_final {
                    assert!(may_hang, "the epoch does not end: {error}");
                    self.finish(seat);
                }
            }
        }
    }

    /// Makes room in memory, as the error says: drops a batch, or ends another iterator.
    fn make_room(&mut self, user: usize, seat: usize, problem: &str) {
        self.shared.count("no memory for next");
        self.seats[seat].without_memory += 1;
        if self.seats[seat].iteration.as_ref().is_some_and(|iteration| iteration.held() > 0) {
            return self.drop_batch(seat);
        }
        let others: Vec<usize> =
            self.users[user].seats.iter().copied().filter(|&other| other != seat).collect();
        let is_alone = self.seats.iter().all(|other| other.number == seat || other.iteration.is_none());
        assert!(
            !is_alone || !self.seats[seat].plot.has_enough_memory,
            "the user can drop nothing: {problem}"
        );
        if self.seats[seat].without_memory == MAX_WITHOUT_MEMORY {
            for other in others {
                self.shared.count("other iterators ended for memory");
                self.close(other);
            }
        } else if self.seats[seat].without_memory > 2 * MAX_WITHOUT_MEMORY {
            self.shared.count("epochs given up for memory");
            self.finish(seat);
        }
    }

    /// Checks that everything has come back.
    fn check_end(&self) {
        assert_eq!(self.slots.leases(), [], "a lease is lost");
        assert_eq!((self.slots.held(), self.shared.memory.borrow().lent()), (0, 0), "a batch is lost");
    }
}

impl Seat {
    fn new(number: usize, plot: Plot) -> Self {
        Self {
            number,
            plot,
            iteration: None,
            epoch: 0,
            place: Position::Start,
            received: Received::new(plot.world, plot.in_order),
            fatal: 0,
            without_memory: 0,
            changes_left: 3,
            is_done: false,
        }
    }
}
