//! The two kinds of queue: an index queue from main to each worker, and one result queue from all workers to
//! main.
//!
//! Each worker has two rings in shared memory (`ring.rs`), one for each direction. A receiver that finds
//! frames takes them without a system call, and the frames of a killed sender are not lost. A receiver that
//! finds nothing spins for a moment, marks itself as asleep in shared memory, and blocks on a channel. A
//! sender that sends a frame to a sleeping receiver wakes it: main wakes a worker over a wake-up channel
//! (`wakeup_channel.rs`), a worker wakes main over a socket of its own ([`channel`](crate::channel)).
//!
//! Main's own threads put notes into the result queue: the reaper puts in exits, each of which main receives
//! after all events of that worker, and the threads that restart workers put in starts. Notes are in memory
//! of the main process, where no worker can forge one.

mod claims;
mod commands;
mod reports;
mod wait;
pub(crate) mod wakeup_channel;
mod wakeup_gate;

use std::{io, num::NonZeroUsize, os::fd::AsFd, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    channel::{SendError, Waker},
    codec::{self, CodecError},
    control::ControlPage,
    held_fd::HeldFd,
    memory,
    ring::{InvalidFrame, RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

pub use crate::ring::MAX_FRAME;
use claims::CLAIM_WORDS;
pub use commands::{CommandReceiver, CommandSender};
pub use reports::{NoteSender, ReportError, ReportReader, ReportReceiver, ReportSender};
pub use wakeup_channel::{WakeupReceiver, WakeupSender, warm_up};
use wakeup_gate::WakeupGate;

// Offsets in a worker's shared memory, in words.
const COMMANDS: usize = 0;
const REPORTS: usize = RING_WORDS;
/// Nonzero while the worker sleeps.
const ASLEEP: usize = 2 * RING_WORDS;
/// Number of the last wake-up that the worker has received.
const RECEIVED_WAKEUP: usize = ASLEEP + 1;
/// One claim for each task that may be unanswered.
const CLAIMS: usize = RECEIVED_WAKEUP + 1;
const WORDS: NonZeroUsize = NonZeroUsize::new(CLAIMS + CLAIM_WORDS).unwrap();

/// Marker type of the [`channel`](crate::channel) that wakes main when the result queue has a report.
#[derive(Debug)]
pub enum Wake {}

/// The shared memory of both queues of one worker.
#[derive(Debug)]
pub struct Rings {
    memory: Arc<SharedWords>,
}

impl Rings {
    /// Creates the memory (about 128 KiB).
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn create() -> io::Result<(Self, HeldFd)> {
        let (words, fd) = memory::reserve_words(WORDS)?;
        Ok((Self { memory: Arc::new(words) }, fd))
    }

    /// Maps the memory that main has created.
    ///
    /// # Errors
    /// If the memory can still shrink, is too small, or cannot be mapped.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self { memory: Arc::new(SharedWords::map(fd, WORDS)?) })
    }

    /// Returns main's ends: the sender of the index queue and the reader of the worker's part of the result
    /// queue.
    pub fn main_ends(self, wakeups: WakeupSender) -> (CommandSender, ReportReader) {
        let ring = RingWriter::new(Arc::clone(&self.memory), COMMANDS);
        let commands = CommandSender {
            ring,
            memory: Arc::clone(&self.memory),
            wakeups,
            gate: WakeupGate::default(),
            frame: Vec::new(),
        };
        (commands, ReportReader(RingReader::new(self.memory, REPORTS)))
    }

    /// Returns the worker's ends: the receiver of the index queue and the sender of the result queue.
    pub fn worker_ends(
        self,
        wakeups: WakeupReceiver,
        wake: Waker,
        control: Arc<ControlPage>,
    ) -> (CommandReceiver, ReportSender) {
        let ring = RingReader::new(Arc::clone(&self.memory), COMMANDS);
        let commands = CommandReceiver { ring, memory: Arc::clone(&self.memory), wakeups, frame: Vec::new() };
        let ring = RingWriter::new(self.memory, REPORTS);
        (commands, ReportSender { ring, wake, control, frame: Vec::new() })
    }
}

fn encode_frame<T: Serialize>(value: &T, frame: &mut Vec<u8>) -> Result<(), SendError> {
    frame.clear();
    codec::encode_into(&mut *frame, value)?;
    if frame.len() > MAX_FRAME { Err(SendError::TooLarge { len: frame.len() }) } else { Ok(()) }
}

/// Decodes the next frame of a ring, if there is one; `frame` is a buffer for its bytes. After an error the
/// ring reads as empty.
fn read_frame<T: DeserializeOwned>(
    ring: &mut RingReader,
    frame: &mut Vec<u8>,
) -> Result<Option<T>, FrameError> {
    if !ring.read(frame)? {
        return Ok(None);
    }
    codec::decode(frame).map(Some).map_err(|error| {
        ring.stop_reading();
        FrameError::Undecodable(error)
    })
}

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
enum FrameError {
    #[error(transparent)]
    Invalid(#[from] InvalidFrame),
    #[error(transparent)]
    Undecodable(CodecError),
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
            Command, Event, ExitStatus, Indices, Lease, MAX_FORGOTTEN, MAX_INLINE_INDICES, MAX_KNOWN_BAD,
            MAX_UNANSWERED, Report, Task,
        },
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    struct Ends {
        commands: CommandSender,
        receiver: CommandReceiver,
        sender: ReportSender,
    }

    /// Makes the queues between this thread and `workers` workers, which are threads of this process.
    fn queues(workers: usize) -> (Vec<Ends>, ReportReceiver, NoteSender) {
        let (control, control_fd) = ControlPage::create(workers).unwrap();
        let (wake, woken) = channel().unwrap();
        let (mut ends, mut readers) = (Vec::new(), Vec::new());
        let witness = Arc::new(HeldFd::new(std::fs::File::open("/").unwrap().into()));
        for _ in 0..workers {
            let (wakeups, receiving) = wakeup_channel::wakeup_channel(&witness).unwrap();
            let (rings, fd) = Rings::create().unwrap();
            let (commands, reader) = rings.main_ends(wakeups);
            let waker = Waker::from_socket(wake.new_remote_end().unwrap());
            let control = Arc::new(ControlPage::map(&control_fd, workers).unwrap());
            let (receiver, sender) =
                Rings::map(&fd).unwrap().worker_ends(WakeupReceiver::new(receiving), waker, control);
            ends.push(Ends { commands, receiver, sender });
            readers.push(reader);
        }
        let (results, notes) = ReportReceiver::new(readers, (wake, woken), Arc::new(control));
        (ends, results, notes)
    }

    /// Returns the number of the worker that sent the event, and the event.
    fn event_of(report: Result<Report, ReportError>) -> (usize, Event) {
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
        let Ends { mut commands, mut receiver, mut sender } = ends.remove(0);
        let worker = thread::spawn(move || {
            while let Some(command) = receiver.receive(soon()).unwrap() {
                let Command::Task(Task { number, lease, .. }) = command else { panic!("{command:?}") };
                sender.send(&Event::Skipped { task: number, lease, held: false }).unwrap();
            }
            sender.send(&Event::Bye).unwrap();
        });
        for number in 0..200 {
            // The delay grows, so that in some rounds both sides are asleep.
            thread::sleep(Duration::from_micros(number));
            commands.send(&Some(Command::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let (0, event) = event_of(results.receive(soon())) else { panic!("there is one worker") };
            assert!(matches!(event, Event::Skipped { task, .. } if task == number), "{event:?}");
        }
        commands.send(&None).unwrap();
        assert_eq!(event_of(results.receive(soon())), (0, Event::Bye));
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
            let (worker, event) = event_of(results.receive(soon()));
            assert!(matches!(event, Event::Skipped { task, .. } if task == next[worker]));
            next[worker] += 1;
        }
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    // PyTorch: X07, N02
    #[test]
    fn an_exit_comes_after_everything_that_the_worker_sent() {
        let (mut ends, mut results, notes) = queues(2);
        ends[1].sender.send(&Event::Ready).unwrap();
        ends[0].sender.send(&Event::Ready).unwrap();
        ends[1].sender.send(&Event::Bye).unwrap();
        let exited = Report::Exited { worker: 1, pid: 7, status: ExitStatus::Code(0) };
        notes.send(exited.clone());
        // Without senders, nothing wakes main any more: the reports must be there already.
        drop((notes, ends));
        let received: Vec<_> = iter::from_fn(|| results.receive(Instant::now()).ok()).collect();
        let event = |worker, event| Report::Event { worker, event };
        let of_1 = received.into_iter().filter(|report| *report != event(0, Event::Ready));
        assert!(of_1.eq([event(1, Event::Ready), event(1, Event::Bye), exited]));
    }

    #[test]
    fn a_note_wakes_main_even_if_a_dead_worker_has_marked_it_as_awake() {
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
        // A lost wake-up shows as a wait until the deadline.
        assert!(started.elapsed() < Duration::from_secs(20));
        noting.join().unwrap();
    }

    #[test]
    fn the_maximum_of_unanswered_tasks_fits_an_index_queue() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { commands, receiver, .. } = &mut ends[0];
        let (forget, known_bad) = (vec![0; MAX_FORGOTTEN], vec![0; MAX_KNOWN_BAD]);
        let largest = Task { forget, known_bad, ..task(0, Indices::List(vec![0; MAX_INLINE_INDICES])) };
        // The receiver marks itself as asleep once, so that a wake-up is sent too.
        receiver.asleep().store(1, Ordering::Relaxed);
        for _ in 0..MAX_UNANSWERED {
            let offer = Command::Offer { task: 0, lease: largest.lease };
            commands.send(&Some(Command::Task(largest.clone()))).unwrap();
            commands.send(&Some(offer)).unwrap();
        }
        commands.send(&None).unwrap();
    }

    #[test]
    fn a_worker_that_receives_no_wake_up_never_makes_main_wait() {
        // Numbers of wake-ups that the worker falsely claims to have received.
        let false_numbers: [fn(u64) -> u64; 3] = [|_| 0, |turn| turn, |_| u64::MAX];
        for false_number in false_numbers {
            let (mut ends, _results, _notes) = queues(1);
            let Ends { mut commands, mut receiver, .. } = ends.remove(0);
            let worker = thread::spawn(move || {
                // More wake-ups than fit into the channel.
                for turn in 0..2_000 {
                    receiver.asleep().store(1, Ordering::Relaxed);
                    commands.send(&Some(Command::Resume { epoch: turn })).unwrap();
                    assert!(receiver.look().unwrap().is_some());
                    receiver.memory.words()[RECEIVED_WAKEUP].store(false_number(turn), Ordering::Relaxed);
                }
            });
            let deadline = soon();
            while !worker.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(worker.is_finished(), "main waits for a worker that receives no wake-up");
            worker.join().unwrap();
        }
    }

    #[test]
    fn a_task_is_begun_or_withdrawn_but_never_both() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { mut commands, receiver, .. } = ends.remove(0);
        let at_worker = Arc::clone(&receiver.memory);
        let [mut begun, mut withdrawn] = [0; 2];
        for number in 0..2_000 {
            commands.send(&Some(Command::Task(task(number, Indices::Range { start: 0, len: 1 })))).unwrap();
            let (by_worker, by_main) = thread::scope(|scope| {
                let worker = scope.spawn(|| Claims::new(&at_worker, CLAIMS).begin(0));
                let by_main = commands.withdraw(0);
                (worker.join().unwrap(), by_main)
            });
            assert!(by_worker != by_main);
            begun += u32::from(by_worker);
            withdrawn += u32::from(by_main);
            // No thread reads the commands here: restart the ring before it is full.
            if number % 500 == 499 {
                commands.ring = RingWriter::new(Arc::clone(&commands.memory), COMMANDS);
            }
        }
        assert_eq!(begun + withdrawn, 2_000);
    }

    // PyTorch: X07
    #[test]
    fn an_invalid_frame_names_its_worker_and_other_workers_go_on() {
        let (mut ends, mut results, _notes) = queues(2);
        assert!(ends[1].sender.ring.write(&[255; 20]));
        ends[0].sender.send(&Event::Ready).unwrap();
        assert_eq!(event_of(results.receive(soon())), (0, Event::Ready));
        assert!(matches!(results.receive(soon()), Err(ReportError::Misbehaved { worker: 1, .. })));
        assert!(matches!(results.receive(Instant::now()), Err(ReportError::TimedOut)));
    }

    #[test]
    fn the_last_commands_are_read_after_main_is_gone() {
        let (mut ends, _results, _notes) = queues(1);
        let Ends { mut commands, mut receiver, .. } = ends.remove(0);
        commands.send(&None).unwrap();
        drop(commands);
        assert!(matches!(receiver.receive(soon()), Ok(None)));
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }
}
