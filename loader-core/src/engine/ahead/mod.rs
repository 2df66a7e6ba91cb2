//! Converts batches on a thread of their own, before the program asks for them.

mod queue;
#[cfg(feature = "stream")]
mod stream;

use std::{
    fmt, io, mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loader_ipc::frame::Stage;

use self::queue::Queue;
#[cfg(feature = "stream")]
pub use self::stream::BatchStream;
use crate::{
    data::{collate::Batch, panic},
    engine::iter::Iter,
    error::Error,
    report::{batch_info::BatchInfo, epoch_report::EpochReport},
    state::State,
};

/// How often the thread, while it waits for a batch, checks whether its iterator was dropped.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);

/// Iterates over converted batches of one epoch, which a thread keeps ready. Returned by
/// [`Iter::convert_ahead`].
///
/// Order and errors are those of [`Iter`]. [`state`](Self::state) is the position after the batch that `next`
/// returned last, however many batches have been converted ahead.
///
/// Dropping it ends the thread and the workers within a deadline, or keeps persistent workers for the next
/// epoch, as dropping an `Iter` does. The drop waits for a conversion that has begun, and without workers
/// (`num_workers(0)`) for the batch that is being loaded.
pub struct ConvertAhead<T> {
    queue: Arc<Queue<Message<T>>>,
    thread: Option<JoinHandle<()>>,
    /// Ends the thread's wait for a batch.
    cancelled: Arc<AtomicBool>,
    /// Process that has the thread. A forked process has only this handle of it.
    owner: u32,
    epoch: u64,
    size_hint: (usize, Option<usize>),
    state: State,
    last: Option<BatchInfo>,
    report: Option<EpochReport>,
}

/// What the thread sends.
#[derive(Debug)]
enum Message<T> {
    /// What `next` returns, and what is known after it.
    Item(Box<Item<T>>),
    /// The epoch is over.
    End(Box<(State, EpochReport)>),
}

#[derive(Debug)]
struct Item<T> {
    result: Result<T, Error>,
    state: State,
    info: Option<BatchInfo>,
    size_hint: (usize, Option<usize>),
}

impl<B: Batch> Iter<B> {
    /// Starts a thread that calls `convert` with each batch, and keeps at most `depth` results ready, plus one
    /// that the thread holds until there is room. Use it to copy batches to a device, or to convert them to
    /// tensors of a framework, while the training step runs.
    ///
    /// If results share the memory of their batches, up to `depth + 1` slots of shared memory are in use besides
    /// those of the results that the program holds. When
    /// [`shared_memory_limit`](crate::Builder::shared_memory_limit) leaves no room for another batch, the
    /// thread waits until the program has taken all results and asks for another one, and tries again. Only then
    /// does `next` return [`Error::SharedMemoryExhausted`].
    ///
    /// The thread replaces the function that was given to [`interrupt_when`](Self::interrupt_when).
    ///
    /// An error or a panic of `convert` is [`Error::ConversionFailed`], and the batch is lost.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if `depth` is 0, and [`Error::System`] if the thread cannot be started.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let dataset = TensorDataset::new(Tensor::from_vec((0..100_i32).collect(), [100])?)?;
    /// let loader = DataLoader::builder(dataset).batch_size(10).build()?;
    /// // In place of the sum: a copy to the device.
    /// let sums = loader.iter()?.convert_ahead(2, |batch| Ok(batch.as_slice().iter().sum::<i32>()))?;
    /// for (number, sum) in sums.enumerate() {
    ///     assert_eq!(sum?, 45 + 100 * number as i32);
    /// }
    /// # anyhow::Ok(())
    /// ```
    pub fn convert_ahead<T, F>(self, depth: usize, convert: F) -> Result<ConvertAhead<T>, Error>
    where
        T: Send + 'static,
        F: FnMut(B) -> anyhow::Result<T> + Send + 'static,
    {
        if depth == 0 {
            let problem =
                "0 results cannot be kept ready; use at least 1, or call the conversion in the loop";
            return Err(Error::invalid_option("depth", problem));
        }
        let (queue, cancelled) = (Arc::new(Queue::new(depth)), Arc::new(AtomicBool::new(false)));
        let (epoch, size_hint, state) = (self.epoch(), self.size_hint(), self.state());
        let converter = Converter { iter: self, convert, queue: Arc::clone(&queue) };
        let thread = converter.start(Arc::clone(&cancelled))?;
        let (owner, last, report) = (std::process::id(), None, None);
        Ok(ConvertAhead {
            queue,
            thread: Some(thread),
            cancelled,
            owner,
            epoch,
            size_hint,
            state,
            last,
            report,
        })
    }

    /// Starts a thread that waits for the batches, and returns them as a [`Stream`](futures_core::Stream). No
    /// call of the stream blocks an async runtime. The thread keeps one batch ready.
    ///
    /// `DataLoader::iter` starts workers, which takes about a millisecond each; a runtime calls it in
    /// `spawn_blocking`, or before it starts.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started.
    ///
    /// # Examples
    /// ```
    /// use futures_util::{StreamExt, TryStreamExt};
    /// use loader_core::prelude::*;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let dataset = TensorDataset::new(Tensor::from_vec((0..100_i32).collect(), [100])?)?;
    /// let loader = DataLoader::builder(dataset).batch_size(40).build()?;
    /// let mut batches = loader.iter()?.into_stream()?;
    /// assert_eq!(batches.next().await.transpose()?.map(|batch| batch.len()), Some(40));
    /// let rest: Vec<Tensor<i32>> = batches.try_collect().await?;
    /// assert_eq!(rest.len(), 2);
    /// # anyhow::Ok(())
    /// # })?;
    /// # anyhow::Ok(())
    /// ```
    #[cfg(feature = "stream")]
    pub fn into_stream(self) -> Result<BatchStream<B>, Error> {
        Ok(self.convert_ahead(1, Ok)?.into_stream())
    }
}

impl<T> ConvertAhead<T> {
    /// Returns the position after the batch that `next` returned last, as [`Iter::state`] does.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// Returns what is known of the batch that `next` returned last, as [`Iter::last_batch`] does.
    pub fn last_batch(&self) -> Option<&BatchInfo> {
        self.last.as_ref()
    }

    /// Returns the number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the report of the epoch once `next` has returned `None`. In it, the conversion is part of the
    /// training step: the loader is the bottleneck if the thread waits for batches.
    /// [`DataLoader::stats`](crate::DataLoader::stats) has figures at any time.
    pub fn report(&self) -> Option<&EpochReport> {
        self.report.as_ref()
    }

    /// Stores the state, the description and the report of `message`. Returns what `next` returns.
    fn record(&mut self, message: Option<Message<T>>) -> Option<Result<T, Error>> {
        match message {
            Some(Message::Item(item)) => {
                (self.state, self.last, self.size_hint) = (item.state, item.info, item.size_hint);
                Some(item.result)
            }
            Some(Message::End(end)) => {
                let (state, report) = *end;
                (self.state, self.report, self.size_hint) = (state, Some(report), (0, Some(0)));
                None
            }
            None => {
                self.size_hint = (0, Some(0));
                // The thread has ended without a last message only if the loader's own code has panicked.
                if let Some(thread) = self.thread.take()
                    && let Err(payload) = thread.join()
                {
                    resume_unwind(payload);
                }
                None
            }
        }
    }

    /// Returns an error in a forked process, which has no such thread.
    fn check_owner(&self) -> Result<(), Error> {
        if self.owner == std::process::id() {
            return Ok(());
        }
        let problem = "this process was forked after `convert_ahead`, and the thread that converts batches exists only in its parent; call `DataLoader::iter` and `convert_ahead` in this process";
        Err(Error::System { what: "loading in a forked process", source: io::Error::other(problem) })
    }
}

impl<T> Iterator for ConvertAhead<T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.report.is_some() {
            return None;
        }
        if let Err(error) = self.check_owner() {
            return Some(Err(error));
        }
        let message = self.queue.receive();
        self.record(message)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.size_hint
    }
}

impl<T> std::iter::FusedIterator for ConvertAhead<T> {}

impl<T> Drop for ConvertAhead<T> {
    fn drop(&mut self) {
        if self.check_owner().is_err() {
            // Detaching the parent's thread could detach a thread of this process instead.
            mem::forget(self.thread.take());
            return;
        }
        // Relaxed: the flag alone is the message.
        self.cancelled.store(true, Ordering::Relaxed);
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the loader's own code has been printed.
            drop(thread.join());
        }
    }
}

impl<T> fmt::Debug for ConvertAhead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvertAhead")
            .field("epoch", &self.epoch)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// The state of the thread that converts batches.
struct Converter<B, T, F> {
    iter: Iter<B>,
    convert: F,
    queue: Arc<Queue<Message<T>>>,
}

impl<B, T, F> Converter<B, T, F>
where
    B: Batch,
    T: Send + 'static,
    F: FnMut(B) -> anyhow::Result<T> + Send + 'static,
{
    fn start(mut self, cancelled: Arc<AtomicBool>) -> Result<JoinHandle<()>, Error> {
        let queue = Arc::clone(&self.queue);
        self.iter.wait_for_room_with(Box::new(move || queue.wait_until_awaited()));
        // Relaxed: the flag alone is the message.
        self.iter.interrupt_when(CANCEL_INTERVAL, move || cancelled.load(Ordering::Relaxed));
        let end = EndOnDrop(Arc::clone(&self.queue));
        let thread = thread::Builder::new().name("loader-convert".to_owned());
        let started = thread.spawn(move || {
            // Dropped after `self`, so that whoever waits for the end of the queue waits for all of the thread.
            let _end = end;
            self.run();
        });
        started.map_err(|source| Error::System { what: "starting a thread that converts batches", source })
    }

    fn run(mut self) {
        while let Some(batch) = self.iter.next() {
            if matches!(batch, Err(Error::Interrupted)) {
                return;
            }
            let result = batch.and_then(|batch| self.converted(batch));
            let (state, info, size_hint) =
                (self.iter.state(), self.iter.last_batch().cloned(), self.iter.size_hint());
            if !self.queue.send(Message::Item(Box::new(Item { result, state, info, size_hint }))) {
                return;
            }
        }
        self.queue.send(Message::End(Box::new((self.iter.state(), self.iter.report()))));
    }

    fn converted(&mut self, batch: B) -> Result<T, Error> {
        let number = self.iter.last_batch().map_or(0, |info| info.number);
        // `Stage` has no value for conversions. Nothing reads it: `UserFailure` has none.
        let stage = Stage::Collate;
        let failure = match catch_unwind(AssertUnwindSafe(|| (self.convert)(batch))) {
            Ok(Ok(converted)) => return Ok(converted),
            Ok(Err(error)) => panic::error_to_failure(&error, stage, None),
            Err(payload) => panic::to_failure(&*payload, stage, None),
        };
        Err(Error::ConversionFailed { batch: number, failure: Box::new(failure.into()) })
    }
}

/// Ends the queue when it is dropped, even if the loader's own code panics.
struct EndOnDrop<T>(Arc<Queue<T>>);

impl<T> Drop for EndOnDrop<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
