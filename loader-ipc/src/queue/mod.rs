//! The two kinds of queue: to each worker one of orders, and from all workers together one of reports.
//!
//! Frames lie in shared memory, in a ring (`ring.rs`) for each worker and direction, so that a busy receiver takes them without
//! a system call and a dead sender's last ones are not lost. A receiver that finds nothing looks for a moment, then says that it
//! sleeps and waits on a channel; whoever sends it something next finds it asleep, and wakes it through that: a worker by its bell
//! (`bell.rs`), main by a socket of each worker's ([`channel`](crate::channel)).
//!
//! Main's own threads put notes into the result queue: the reaper exits, each behind everything that its worker had sent, and those
//! who start a worker again that they have. Notes lie in this process's memory, where no worker can forge one.

pub(crate) mod bell;
mod bells;
mod claims;
mod orders;
mod reports;
mod wait;

use std::{io, num::NonZeroUsize, os::fd::OwnedFd, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    channel::{SendError, Waker},
    codec,
    control::ControlPage,
    memory,
    ring::{RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

pub use crate::ring::MAX_FRAME;
pub use bell::{Ear, Ringer};
use bells::Bells;
use claims::CLAIM_WORDS;
pub use orders::{OrderReceiver, OrderSender};
pub use reports::{NoteSender, ReportError, ReportReader, ReportReceiver, ReportSender};

// Where things lie in a worker's shared memory, in words.
const ORDERS: usize = 0;
const REPORTS: usize = RING_WORDS;
/// Nonzero while the worker sleeps.
const ASLEEP: usize = 2 * RING_WORDS;
/// The last bell that the worker has heard.
const HEARD: usize = ASLEEP + 1;
/// A word for each task that may be unanswered.
const CLAIMS: usize = HEARD + 1;
const WORDS: NonZeroUsize = NonZeroUsize::new(CLAIMS + CLAIM_WORDS).unwrap();

/// Whom the [`channel`](crate::channel) of the result queue wakes: main.
#[derive(Debug)]
pub enum Wake {}

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
        let (words, fd) = memory::reserve_words(WORDS)?;
        Ok((Self { memory: Arc::new(words) }, fd))
    }

    /// Maps the memory that main made.
    ///
    /// # Errors
    /// When it is not such memory.
    pub fn map(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { memory: Arc::new(SharedWords::map(fd, WORDS)?) })
    }

    /// Main's ends.
    pub fn of_main(self, bell: Ringer) -> (OrderSender, ReportReader) {
        let ring = RingWriter::new(Arc::clone(&self.memory), ORDERS);
        let orders = OrderSender {
            ring,
            memory: Arc::clone(&self.memory),
            bell,
            bells: Bells::default(),
            frame: Vec::new(),
        };
        (orders, ReportReader(RingReader::new(self.memory, REPORTS)))
    }

    /// The worker's ends.
    pub fn of_worker(
        self,
        bell: Ear,
        wake: Waker,
        control: Arc<ControlPage>,
    ) -> (OrderReceiver, ReportSender) {
        let ring = RingReader::new(Arc::clone(&self.memory), ORDERS);
        let orders = OrderReceiver { ring, memory: Arc::clone(&self.memory), bell, frame: Vec::new() };
        let ring = RingWriter::new(self.memory, REPORTS);
        (orders, ReportSender { ring, wake, control, frame: Vec::new() })
    }
}

fn encode_frame<T: Serialize>(value: &T, frame: &mut Vec<u8>) -> Result<(), SendError> {
    frame.clear();
    codec::encode_into(&mut *frame, value)?;
    if frame.len() > MAX_FRAME { Err(SendError::TooLarge { len: frame.len() }) } else { Ok(()) }
}

/// The next frame of a ring, if there is one; `frame` is room for its bytes. After an error nothing more is read from the ring.
fn read_frame<T: DeserializeOwned>(ring: &mut RingReader, frame: &mut Vec<u8>) -> Result<Option<T>, String> {
    if !ring.read(frame).map_err(|nonsense| nonsense.to_string())? {
        return Ok(None);
    }
    codec::decode(frame).map(Some).map_err(|error| {
        ring.give_up();
        error.to_string()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        sync::atomic::Ordering,
        thread,
        time::{Duration, Instant},
    };

    use super::{claims::Claims, wait::Receive, *};
    use crate::{
        channel::{ReceiveError, channel},
        frame::{
            Event, ExitStatus, Indices, Lease, MOST_FORGOTTEN, MOST_INLINE_INDICES, MOST_KNOWN_BAD,
            MOST_UNANSWERED, Order, Report, Task,
        },
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    struct Ends {
        orders: OrderSender,
        receiver: OrderReceiver,
        sender: ReportSender,
    }

    /// Queues between this thread and workers that are threads of this process.
    fn queues(workers: usize) -> (Vec<Ends>, ReportReceiver, NoteSender) {
        let (control, control_fd) = ControlPage::create(workers).unwrap();
        let (wake, woken) = channel().unwrap();
        let (mut ends, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (bell, rung) = bell::bell().unwrap();
            let (rings, fd) = Rings::create().unwrap();
            let (orders, reader) = rings.of_main(bell);
            let waker = Waker::from_socket(wake.end_for_other().unwrap());
            let control = Arc::new(ControlPage::map(&control_fd, workers).unwrap());
            let (receiver, sender) = Rings::map(&fd).unwrap().of_worker(Ear::new(rung), waker, control);
            ends.push(Ends { orders, receiver, sender });
            readers.push(reader);
        }
        let (results, notes) = ReportReceiver::new(readers, (wake, woken), Arc::new(control));
        (ends, results, notes)
    }

    /// A worker's number and what it said.
    fn said(report: Result<Report, ReportError>) -> (usize, Event) {
        match report {
            Ok(Report::Event { worker, event }) => (worker, event),
            other => panic!("{other:?}"),
        }
    }

    fn task(number: u64, indices: Indices) -> Task {
        let lease = Lease { slot: 1, generation: 2, len: 3 };
        Task { epoch: 0, number, lease, indices, forget: Vec::new(), claim: 0, known_bad: Vec::new() }
    }

    #[test]
    fn a_sleeping_receiver_is_woken_on_either_side() {
        let (mut ends, mut results, _notes) = queues(1);
        let Ends { mut orders, mut receiver, mut sender } = ends.remove(0);
        let worker = thread::spawn(move || {
            while let Some(order) = receiver.receive(soon()).unwrap() {
                let Order::Task(Task { number, lease, .. }) = order else { panic!("{order:?}") };
                sender.send(&Event::Skipped { task: number, lease, held: false }).unwrap();
            }
            sender.send(&Event::Bye).unwrap();
        });
        for number in 0..200 {
            // Now and then both sides are asleep.
            thread::sleep(Duration::from_micros(number));
            orders.send(&Some(Order::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let (0, event) = said(results.receive(soon())) else { panic!("there is one worker") };
            assert!(matches!(event, Event::Skipped { task, .. } if task == number), "{event:?}");
        }
        orders.send(&None).unwrap();
        assert_eq!(said(results.receive(soon())), (0, Event::Bye));
        worker.join().unwrap();
    }

    #[test]
    fn many_reports_from_several_workers_arrive_once_each() {
        const REPORTS: u64 = 20_000;
        let (ends, mut results, _notes) = queues(3);
        let workers: Vec<_> = ends
            .into_iter()
            .map(|Ends { mut sender, .. }| {
                thread::spawn(move || {
                    let lease = Lease { slot: 0, generation: 0, len: 0 };
                    (0..REPORTS)
                        .for_each(|task| sender.send(&Event::Skipped { task, lease, held: false }).unwrap());
                })
            })
            .collect();
        let mut next = [0; 3];
        for _ in 0..3 * REPORTS {
            let (worker, event) = said(results.receive(soon()));
            assert!(matches!(event, Event::Skipped { task, .. } if task == next[worker]));
            next[worker] += 1;
        }
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    #[test]
    fn an_exit_comes_after_everything_that_the_worker_sent() {
        let (mut ends, mut results, notes) = queues(2);
        ends[1].sender.send(&Event::Ready).unwrap();
        ends[0].sender.send(&Event::Ready).unwrap();
        ends[1].sender.send(&Event::Bye).unwrap();
        let exited = Report::Exited { worker: 1, pid: 7, status: ExitStatus::Code(0) };
        notes.send(exited.clone());
        // Nobody can wake main any more.
        drop((notes, ends));
        let received: Vec<_> = iter::from_fn(|| results.receive(Instant::now()).ok()).collect();
        let said = |worker, event| Report::Event { worker, event };
        let of_1 = received.into_iter().filter(|report| *report != said(0, Event::Ready));
        assert!(of_1.eq([said(1, Event::Ready), said(1, Event::Bye), exited]));
    }

    #[test]
    fn a_note_wakes_main_also_when_a_dead_worker_has_marked_it_as_awake() {
        let (ends, mut results, notes) = queues(1);
        let control = Arc::clone(&ends[0].sender.control);
        let noting = thread::spawn(move || {
            let deadline = soon();
            while control.main_asleep().swap(0, Ordering::Relaxed) == 0 && Instant::now() < deadline {
                thread::yield_now();
            }
            notes.send(Report::Started { worker: 0 });
        });
        let started = Instant::now();
        assert!(matches!(
            results.receive(started + Duration::from_secs(60)),
            Ok(Report::Started { worker: 0 })
        ));
        // Without a wake-up, main sees it only at the deadline.
        assert!(started.elapsed() < Duration::from_secs(20));
        noting.join().unwrap();
    }

    #[test]
    fn what_may_be_unanswered_fits_a_task_queue() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { orders, receiver, .. } = &mut ends[0];
        let (forget, known_bad) = (vec![0; MOST_FORGOTTEN], vec![0; MOST_KNOWN_BAD]);
        let largest = Task { forget, known_bad, ..task(0, Indices::List(vec![0; MOST_INLINE_INDICES])) };
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
    fn a_worker_that_hears_no_bell_never_makes_main_wait() {
        // What it claims to have heard: nothing, anything, and what main rang for it before.
        let lies: [fn(u64) -> u64; 3] = [|_| 0, |turn| turn, |_| u64::MAX];
        for lie in lies {
            let (mut ends, _results, _notes) = queues(1);
            let Ends { mut orders, mut receiver, .. } = ends.remove(0);
            let lying = thread::spawn(move || {
                // Far more than a channel takes.
                for turn in 0..2_000 {
                    receiver.asleep().store(1, Ordering::Relaxed);
                    orders.send(&Some(Order::Resume { epoch: turn })).unwrap();
                    assert!(receiver.look().unwrap().is_some());
                    receiver.memory.words()[HEARD].store(lie(turn), Ordering::Relaxed);
                }
            });
            let deadline = soon();
            while !lying.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(lying.is_finished(), "main waits for a worker that hears nothing");
            lying.join().unwrap();
        }
    }

    #[test]
    fn a_task_is_begun_or_withdrawn_but_never_both() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { mut orders, receiver, .. } = ends.remove(0);
        let at_worker = Arc::clone(&receiver.memory);
        let [mut begun, mut withdrawn] = [0; 2];
        for number in 0..2_000 {
            orders.send(&Some(Order::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let (by_worker, by_main) = thread::scope(|scope| {
                let worker = scope.spawn(|| Claims::new(&at_worker, CLAIMS).begin(0));
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
        let (mut ends, mut results, _notes) = queues(2);
        assert!(ends[1].sender.ring.write(&[255; 20]));
        ends[0].sender.send(&Event::Ready).unwrap();
        assert_eq!(said(results.receive(soon())), (0, Event::Ready));
        assert!(matches!(results.receive(soon()), Err(ReportError::Malformed { worker: 1, .. })));
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
    }

    #[test]
    fn the_last_orders_are_read_after_main_is_gone() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { mut orders, mut receiver, .. } = ends.remove(0);
        orders.send(&None).unwrap();
        drop(orders);
        assert!(matches!(receiver.receive(soon()), Ok(None)));
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }
}
