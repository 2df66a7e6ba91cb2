//! Batches as a stream for async programs.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::ConvertAhead;
use crate::{
    error::Error,
    report::{batch_info::BatchInfo, epoch_report::EpochReport},
    state::State,
};

/// A [`Stream`] of the batches of one epoch, which a thread loads. Returned by
/// [`Iter::into_stream`](crate::Iter::into_stream) and [`ConvertAhead::into_stream`].
///
/// A future of `next` that is dropped, as by `select!`, counts as a request for a batch; see
/// [`Iter::convert_ahead`](crate::Iter::convert_ahead) on limited memory.
///
/// Dropping it does not wait: the thread ends the workers in the background. Persistent workers stay for the
/// next epoch if the thread has ended this epoch before the next one begins.
pub struct BatchStream<T>(ConvertAhead<T>);

impl<T> ConvertAhead<T> {
    /// Returns the results as a [`Stream`], whose calls never block.
    pub fn into_stream(self) -> BatchStream<T> {
        BatchStream(self)
    }
}

impl<T> BatchStream<T> {
    /// Returns the position after the batch that the stream returned last; see
    /// [`Iter::state`](crate::Iter::state).
    pub fn state(&self) -> State {
        self.0.state()
    }

    /// Returns what is known of the batch that the stream returned last; see
    /// [`Iter::last_batch`](crate::Iter::last_batch).
    pub fn last_batch(&self) -> Option<&BatchInfo> {
        self.0.last_batch()
    }

    /// Returns the number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Returns the report of the epoch once the stream has ended; see [`ConvertAhead::report`].
    pub fn report(&self) -> Option<&EpochReport> {
        self.0.report()
    }
}

impl<T> Stream for BatchStream<T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let ahead = &mut self.get_mut().0;
        if ahead.report.is_some() {
            return Poll::Ready(None);
        }
        if let Err(error) = ahead.check_owner() {
            return Poll::Ready(Some(Err(error)));
        }
        ahead.queue.poll_receive(cx).map(|message| ahead.record(message))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> Drop for BatchStream<T> {
    fn drop(&mut self) {
        if self.0.check_owner().is_ok() {
            // Without the handle, the drop of `ConvertAhead` does not wait for the thread.
            drop(self.0.thread.take());
        }
    }
}

impl<T> fmt::Debug for BatchStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BatchStream").field(&self.0).finish()
    }
}
