//! The two kinds of queue: to each worker one of orders, and from all workers together one of reports.
//!
//! Frames lie in shared memory, in a ring (`ring.rs`) for each worker and direction, so that a busy receiver takes them without
//! a system call and a dead sender's last ones are not lost. A receiver that finds nothing looks for a moment, then says that it
//! sleeps and waits on a [channel]; whoever sends it something next finds it asleep, and wakes it through that
//! channel.
//!
//! Main's reaper puts exits into the result queue, behind everything that the worker had sent.

use std::{
    collections::VecDeque,
    io,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    channel::{self, ReceiveError, SendError},
    codec,
    control::ControlPage,
    frame::{Event, ExitStatus, MOST_UNANSWERED, Order, Report},
    memory,
    ring::{Nonsense, RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

pub use crate::ring::MAX_FRAME;

/// How long a receiver looks again and again before it sleeps: a sleeping processor takes longer to wake than a small batch takes
/// to load.
const LOOKING: Duration = Duration::from_micros(20);
/// How long a worker waits before it looks again for room in its ring.
const ROOM_INTERVAL: Duration = Duration::from_micros(200);

// Where things lie in a worker's shared memory, in words.
const ORDERS: usize = 0;
const REPORTS: usize = RING_WORDS;
/// Nonzero while the worker sleeps.
const ASLEEP: usize = 2 * RING_WORDS;
/// A word for each task that may be unanswered.
const CLAIMS: usize = ASLEEP + 1;
const WORDS: NonZeroUsize = NonZeroUsize::new(CLAIMS + MOST_UNANSWERED).unwrap();

// What a claim says: whoever changes it first, the worker that begins the task or main that withdraws it, has the task.
const OPEN: u64 = 0;
const BEGUN: u64 = 1;
const WITHDRAWN: u64 = 2;

/// Wakes a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bell;

/// Wakes main.
#[derive(Debug, Serialize, Deserialize)]
pub enum Wake {
    /// There is a report.
    Report,
    /// From the reaper.
    Exited {
        /// The worker that has ended.
        worker: u32,
        /// Its process id.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
    },
}

/// The shared memory of both queues of one worker.
#[derive(Debug)]
pub struct Rings {
    memory: Arc<SharedWords>,
}

impl Rings {
    /// Makes the memory (128 KiB).
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let bytes = WORDS.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
        let fd = memory::reserve(bytes.expect("a constant"))?;
        Ok((Self::map(&fd)?, fd))
    }

    /// Maps the memory that main made.
    ///
    /// # Errors
    /// When it is not such memory.
    pub fn map(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { memory: Arc::new(SharedWords::map(fd, WORDS)?) })
    }

    /// Main's ends.
    pub fn of_main(self, bell: channel::Sender<Bell>) -> (OrderSender, ReportReader) {
        let ring = RingWriter::new(Arc::clone(&self.memory), ORDERS);
        let orders = OrderSender { ring, memory: Arc::clone(&self.memory), bell, frame: Vec::new() };
        (orders, ReportReader(RingReader::new(self.memory, REPORTS)))
    }

    /// The worker's ends.
    pub fn of_worker(
        self,
        bell: channel::Receiver<Bell>,
        wake: channel::Sender<Wake>,
        control: Arc<ControlPage>,
    ) -> (OrderReceiver, ReportSender) {
        let ring = RingReader::new(Arc::clone(&self.memory), ORDERS);
        let orders = OrderReceiver { ring, memory: Arc::clone(&self.memory), bell, frame: Vec::new() };
        let ring = RingWriter::new(self.memory, REPORTS);
        (orders, ReportSender { ring, wake, control, frame: Vec::new() })
    }
}

/// Main's end of a worker's task queue.
#[derive(Debug)]
pub struct OrderSender {
    ring: RingWriter,
    memory: Arc<SharedWords>,
    bell: channel::Sender<Bell>,
    frame: Vec<u8>,
}

/// A worker's end of its task queue. `None` is the sentinel.
#[derive(Debug)]
pub struct OrderReceiver {
    ring: RingReader,
    memory: Arc<SharedWords>,
    bell: channel::Receiver<Bell>,
    frame: Vec<u8>,
}

/// A worker's end of the result queue.
#[derive(Debug)]
pub struct ReportSender {
    ring: RingWriter,
    wake: channel::Sender<Wake>,
    control: Arc<ControlPage>,
    frame: Vec<u8>,
}

/// Main's end of one worker's part of the result queue.
#[derive(Debug)]
pub struct ReportReader(RingReader);

/// Main's end of the result queue.
#[derive(Debug)]
pub struct ReportReceiver {
    /// By worker.
    readers: Vec<ReportReader>,
    /// The worker to look at first: each one gets its turn.
    turn: usize,
    wake: channel::Receiver<Wake>,
    control: Arc<ControlPage>,
    /// The reaper has sent something.
    has_exits: Arc<AtomicBool>,
    exits: VecDeque<(usize, Event)>,
    frame: Vec<u8>,
}

/// The reaper's end of the result queue.
#[derive(Debug)]
pub struct ExitSender {
    wake: channel::Sender<Wake>,
    has_exits: Arc<AtomicBool>,
}

impl OrderSender {
    /// Sends an order, or the sentinel. Never waits: what is unanswered is kept so small ([`MOST_UNANSWERED`]) that it fits.
    ///
    /// # Errors
    /// [`SendError`]; that there is no room is a defect of the loader. The frame was then not sent.
    pub fn send(&mut self, order: &Option<Order>) -> Result<(), SendError> {
        encode_frame(order, &mut self.frame)?;
        if let Some(Order::Task(task)) = order {
            // Relaxed: it becomes visible with the frame.
            claim(&self.memory, task.claim).store(OPEN, Ordering::Relaxed);
        }
        if !self.ring.write(&self.frame) {
            let problem = format!("more than {MOST_UNANSWERED} tasks do not fit");
            return Err(SendError::Io(io::Error::other(problem)));
        }
        let asleep = &self.memory.words()[ASLEEP];
        if must_wake(asleep) { self.bell.send(&Bell) } else { Ok(()) }
    }

    /// Takes back the task that was sent with `claim`. False when the worker has begun it.
    pub fn withdraw(&self, claim: u32) -> bool {
        take(&self.memory, claim, WITHDRAWN)
    }
}

impl OrderReceiver {
    /// Waits for the next order until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReceiveError`]; `Closed` when main has dropped its end, after the last order.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Order>, ReceiveError> {
        wait(self, deadline)
    }

    /// Begins the task that came with `claim`. False when main has withdrawn it.
    pub fn begin(&self, claim: u32) -> bool {
        take(&self.memory, claim, BEGUN)
    }
}

impl ReportSender {
    /// Sends a report. Waits while the ring is full, until main reads: the watchdog is what notices a dead main.
    ///
    /// # Errors
    /// [`SendError`]; the report was then not sent, or, with `Closed`, there is nobody to read it.
    pub fn send(&mut self, event: &Event) -> Result<(), SendError> {
        encode_frame(event, &mut self.frame)?;
        while !self.ring.write(&self.frame) {
            thread::sleep(ROOM_INTERVAL);
        }
        if must_wake(self.control.main_asleep()) { self.wake.send(&Wake::Report) } else { Ok(()) }
    }
}

impl ReportReceiver {
    /// The result queue of workers whose parts are `readers`, by number. `wake` is the channel that they were given the sending end
    /// of; `control` their control page.
    pub fn new(
        readers: Vec<ReportReader>,
        (sender, receiver): (channel::Sender<Wake>, channel::Receiver<Wake>),
        control: Arc<ControlPage>,
    ) -> (Self, ExitSender) {
        let has_exits = Arc::new(AtomicBool::new(false));
        let exits = ExitSender { wake: sender, has_exits: Arc::clone(&has_exits) };
        let (exits_of, frame) = (VecDeque::new(), Vec::new());
        let this = Self { readers, turn: 0, wake: receiver, control, has_exits, exits: exits_of, frame };
        (this, exits)
    }

    /// Waits for the next report until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReportError`]; for a worker that wrote nonsense once, after which nothing more is read from it.
    pub fn receive(&mut self, deadline: Instant) -> Result<Report, ReportError> {
        wait(self, deadline)
    }

    /// Puts an exit that the reaper did not send behind what the worker had sent.
    pub fn note_exit(&mut self, worker: usize, pid: u32, status: ExitStatus) {
        self.exits.push_back((worker, Event::Exited { pid, status }));
    }

    /// An exit whose worker has nothing more to say.
    fn next_exit(&mut self) -> Option<Report> {
        // Acquire: pairs with the Release in `ExitSender::send`; only the hint hangs on it.
        if self.has_exits.swap(false, Ordering::Acquire) {
            // An error ends this too, but comes again when there is nothing else: the reaper closes its end behind the last exit.
            while let Ok(wake) = self.wake.receive(Instant::now()) {
                self.note(wake);
            }
        }
        let said_all = |&(worker, _): &(usize, Event)| self.readers[worker].0.is_empty();
        let place = self.exits.iter().position(said_all);
        let exit = place.and_then(|place| self.exits.remove(place));
        exit.map(|(worker, event)| Report { worker, event })
    }

    fn note(&mut self, wake: Wake) {
        if let Wake::Exited { worker, pid, status } = wake {
            let worker = worker as usize;
            // Another number can only come from a worker that writes what it should not.
            if worker < self.readers.len() {
                self.note_exit(worker, pid, status);
            }
        }
    }
}

impl ExitSender {
    /// Says that a worker has ended. What it had sent is reported before.
    ///
    /// # Errors
    /// [`SendError`]; nobody is interested then.
    pub fn send(&self, worker: u32, pid: u32, status: ExitStatus) -> Result<(), SendError> {
        let sent = self.wake.send(&Wake::Exited { worker, pid, status });
        // Release: main, which may be too busy to sleep, finds the exit when it sees this.
        self.has_exits.store(true, Ordering::Release);
        sent
    }
}

/// Why no report was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The deadline passed.
    #[error("no report within the deadline")]
    TimedOut,
    /// A worker wrote what is no report.
    #[error("worker {worker} wrote nonsense: {problem}")]
    Malformed {
        /// The worker.
        worker: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The channel that wakes main failed.
    #[error(transparent)]
    Channel(ReceiveError),
}

impl From<ReceiveError> for ReportError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::TimedOut => Self::TimedOut,
            error => Self::Channel(error),
        }
    }
}

/// A receiver: what it looks at, and how it sleeps.
trait Receive {
    type Frame;
    type Error: From<ReceiveError>;

    fn look(&mut self) -> Result<Option<Self::Frame>, Self::Error>;

    /// Sleeps until it is woken, at most until `deadline`.
    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError>;

    /// Nonzero while it sleeps.
    fn asleep(&self) -> &AtomicU64;
}

impl Receive for OrderReceiver {
    type Frame = Option<Order>;
    type Error = ReceiveError;

    fn look(&mut self) -> Result<Option<Self::Frame>, ReceiveError> {
        match self.ring.read(&mut self.frame) {
            Ok(true) => decode_frame(&self.frame).map(Some).map_err(ReceiveError::Malformed),
            Ok(false) => Ok(None),
            Err(Nonsense) => Err(ReceiveError::Malformed(Nonsense.to_string())),
        }
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        self.bell.receive(deadline).map(drop)
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.memory.words()[ASLEEP]
    }
}

impl Receive for ReportReceiver {
    type Frame = Report;
    type Error = ReportError;

    fn look(&mut self) -> Result<Option<Report>, ReportError> {
        if let Some(exit) = self.next_exit() {
            return Ok(Some(exit));
        }
        let workers = self.readers.len();
        for worker in (self.turn..workers).chain(0..self.turn) {
            let malformed = |problem| ReportError::Malformed { worker, problem };
            match self.readers[worker].0.read(&mut self.frame) {
                Ok(false) => {}
                Ok(true) => {
                    self.turn = (worker + 1) % workers;
                    let decoded = decode_frame(&self.frame);
                    if decoded.is_err() {
                        self.readers[worker].0.give_up();
                    }
                    let event = decoded.map_err(malformed)?;
                    return Ok(Some(Report { worker, event }));
                }
                Err(Nonsense) => return Err(malformed(Nonsense.to_string())),
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        let wake = self.wake.receive(deadline)?;
        self.note(wake);
        Ok(())
    }

    fn asleep(&self) -> &AtomicU64 {
        self.control.main_asleep()
    }
}

/// Turns an open claim into `taken`.
fn take(memory: &SharedWords, number: u32, taken: u64) -> bool {
    // Relaxed: it decides who has the task; the task itself came with its frame, and its slot's memory is of nobody yet.
    claim(memory, number).compare_exchange(OPEN, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

fn claim(memory: &SharedWords, number: u32) -> &AtomicU64 {
    &memory.words()[CLAIMS + number as usize % MOST_UNANSWERED]
}

/// Looks again and again, giving way to others in between, then sleeps; at least looks once.
fn wait<R: Receive>(receiver: &mut R, deadline: Instant) -> Result<R::Frame, R::Error> {
    let mut started = None;
    loop {
        if let Some(frame) = receiver.look()? {
            return Ok(frame);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(ReceiveError::TimedOut.into());
        }
        if now - *started.get_or_insert(now) < LOOKING {
            thread::yield_now();
            continue;
        }
        // Relaxed, with the fence: either the sender sees this, or we see its frame.
        receiver.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let looked = receiver.look();
        let slept = match looked {
            Ok(None) => receiver.sleep(deadline),
            _ => Ok(()),
        };
        receiver.asleep().store(0, Ordering::Relaxed);
        if let Some(frame) = looked? {
            return Ok(frame);
        }
        match slept {
            Ok(()) | Err(ReceiveError::TimedOut) => {}
            // What was sent before the end counts.
            Err(error) => return receiver.look()?.ok_or_else(|| error.into()),
        }
    }
}

/// True for the one sender that finds the receiver asleep after its frame became visible.
fn must_wake(asleep: &AtomicU64) -> bool {
    // Pairs with the fence in `wait`: either we see that it sleeps, or it sees our frame.
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

fn encode_frame<T: Serialize>(value: &T, frame: &mut Vec<u8>) -> Result<(), SendError> {
    frame.clear();
    codec::encode_into(&mut *frame, value)?;
    if frame.len() > MAX_FRAME { Err(SendError::TooLarge { len: frame.len() }) } else { Ok(()) }
}

fn decode_frame<T: DeserializeOwned>(frame: &[u8]) -> Result<T, String> {
    codec::decode(frame).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::frame::{Indices, Lease, MOST_FORGOTTEN, MOST_INLINE_INDICES, Task};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    struct Ends {
        orders: OrderSender,
        receiver: OrderReceiver,
        sender: ReportSender,
    }

    /// Queues between this thread and workers that are threads of this process.
    fn queues(workers: usize) -> (Vec<Ends>, ReportReceiver, ExitSender) {
        let (control, control_fd) = ControlPage::create(workers).unwrap();
        let (wake, woken) = channel::channel().unwrap();
        let (mut ends, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (bell, rung) = channel::channel().unwrap();
            let (rings, fd) = Rings::create().unwrap();
            let (orders, reader) = rings.of_main(bell);
            let control = Arc::new(ControlPage::map(&control_fd, workers).unwrap());
            let (receiver, sender) = Rings::map(&fd).unwrap().of_worker(rung, wake.clone(), control);
            ends.push(Ends { orders, receiver, sender });
            readers.push(reader);
        }
        let (results, exits) = ReportReceiver::new(readers, (wake, woken), Arc::new(control));
        (ends, results, exits)
    }

    fn task(number: u64, indices: Indices) -> Task {
        let lease = Lease { slot: 1, generation: 2, len: 3 };
        Task { epoch: 0, number, lease, indices, forget: Vec::new(), claim: 0 }
    }

    #[test]
    fn a_sleeping_receiver_is_woken_on_either_side() {
        let (mut ends, mut results, _exits) = queues(1);
        let Ends { mut orders, mut receiver, mut sender } = ends.remove(0);
        let worker = thread::spawn(move || {
            while let Some(order) = receiver.receive(soon()).unwrap() {
                let Order::Task(Task { number, lease, .. }) = order else { panic!("{order:?}") };
                sender.send(&Event::Skipped { task: number, lease }).unwrap();
            }
            sender.send(&Event::Bye).unwrap();
        });
        for number in 0..200 {
            // Now and then both sides are asleep.
            thread::sleep(Duration::from_micros(number));
            orders.send(&Some(Order::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let event = results.receive(soon()).unwrap().event;
            assert!(matches!(event, Event::Skipped { task, .. } if task == number), "{event:?}");
        }
        orders.send(&None).unwrap();
        assert_eq!(results.receive(soon()).unwrap().event, Event::Bye);
        worker.join().unwrap();
    }

    #[test]
    fn many_reports_from_several_workers_arrive_once_each() {
        const REPORTS: u64 = 20_000;
        let (ends, mut results, _exits) = queues(3);
        let workers: Vec<_> = ends
            .into_iter()
            .map(|Ends { mut sender, .. }| {
                thread::spawn(move || {
                    let lease = Lease { slot: 0, generation: 0, len: 0 };
                    (0..REPORTS).for_each(|task| sender.send(&Event::Skipped { task, lease }).unwrap());
                })
            })
            .collect();
        let mut next = [0; 3];
        for _ in 0..3 * REPORTS {
            let Report { worker, event } = results.receive(soon()).unwrap();
            assert!(matches!(event, Event::Skipped { task, .. } if task == next[worker]));
            next[worker] += 1;
        }
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    #[test]
    fn an_exit_comes_after_everything_that_the_worker_sent() {
        let (mut ends, mut results, exits) = queues(2);
        ends[1].sender.send(&Event::Ready).unwrap();
        ends[0].sender.send(&Event::Ready).unwrap();
        ends[1].sender.send(&Event::Bye).unwrap();
        exits.send(1, 7, ExitStatus::Code(0)).unwrap();
        // The reaper ends behind the last exit, and nobody else can wake main any more.
        drop((exits, ends));
        let received: Vec<_> = iter::from_fn(|| results.receive(Instant::now()).ok()).collect();
        let of_1 = received.into_iter().filter(|report| report.worker == 1).map(|report| report.event);
        let exited = Event::Exited { pid: 7, status: ExitStatus::Code(0) };
        assert!(of_1.eq([Event::Ready, Event::Bye, exited]));
    }

    #[test]
    fn what_may_be_unanswered_fits_a_task_queue() {
        let (mut ends, _results, _exits) = queues(1);
        let Ends { orders, receiver, .. } = &mut ends[0];
        let largest =
            Task { forget: vec![0; MOST_FORGOTTEN], ..task(0, Indices::List(vec![0; MOST_INLINE_INDICES])) };
        // The receiver says once that it sleeps, so that one bell lies in the channel too.
        receiver.asleep().store(1, Ordering::Relaxed);
        for _ in 0..MOST_UNANSWERED {
            let offer = Order::Offer { task: 0, lease: largest.lease };
            orders.send(&Some(Order::Task(largest.clone()))).unwrap();
            orders.send(&Some(offer)).unwrap();
        }
        orders.send(&None).unwrap();
    }

    #[test]
    fn a_task_is_begun_or_withdrawn_but_never_both() {
        let (mut ends, _results, _exits) = queues(1);
        let Ends { mut orders, receiver, .. } = ends.remove(0);
        let at_worker = Arc::clone(&receiver.memory);
        let [mut begun, mut withdrawn] = [0; 2];
        for number in 0..2_000 {
            orders.send(&Some(Order::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let (by_worker, by_main) = thread::scope(|scope| {
                let worker = scope.spawn(|| take(&at_worker, 0, BEGUN));
                let by_main = orders.withdraw(0);
                (worker.join().unwrap(), by_main)
            });
            assert!(by_worker != by_main);
            begun += u32::from(by_worker);
            withdrawn += u32::from(by_main);
            // Nobody reads the orders here: start anew before the ring is full.
            if number % 500 == 499 {
                orders.ring = RingWriter::new(Arc::clone(&orders.memory), ORDERS);
            }
        }
        assert_eq!(begun + withdrawn, 2_000);
    }

    #[test]
    fn nonsense_names_its_worker_and_others_go_on() {
        let (mut ends, mut results, _exits) = queues(2);
        assert!(ends[1].sender.ring.write(&[255; 20]));
        ends[0].sender.send(&Event::Ready).unwrap();
        assert_eq!(results.receive(soon()).unwrap(), Report { worker: 0, event: Event::Ready });
        assert!(matches!(results.receive(soon()), Err(ReportError::Malformed { worker: 1, .. })));
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
    }

    #[test]
    fn the_last_orders_are_read_after_main_is_gone() {
        let (mut ends, _results, _exits) = queues(1);
        let Ends { mut orders, mut receiver, .. } = ends.remove(0);
        orders.send(&None).unwrap();
        drop(orders);
        assert!(matches!(receiver.receive(soon()), Ok(None)));
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }
}
