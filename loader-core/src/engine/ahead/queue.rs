//! The queue between the thread that converts batches and the thread that uses them.

#[cfg(feature = "stream")]
use std::task::{Context, Poll};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

/// A queue of at most `depth` items with one sender and one receiver.
///
/// Each side wakes the other by [`end`](Self::end) or [`close`](Self::close) when it is dropped, so neither
/// waits for a side that is gone.
///
/// Alternative considered: `std::sync::mpsc::sync_channel`. Rejected because a task of an async runtime cannot
/// wait for it, and the sender must know when the receiver waits.
#[derive(Debug)]
pub(super) struct Queue<T> {
    depth: usize,
    state: Mutex<QueueState<T>>,
    /// Signalled whenever the state changes.
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    /// True once the sender has sent its last item.
    has_ended: bool,
    /// True once the receiver takes no more items.
    is_closed: bool,
    /// True while the receiver waits for an item.
    is_awaited: bool,
    /// The task that waits for an item.
    waker: Option<Waker>,
}

impl<T> Queue<T> {
    pub(super) fn new(depth: usize) -> Self {
        let state = QueueState {
            items: VecDeque::new(),
            has_ended: false,
            is_closed: false,
            is_awaited: false,
            waker: None,
        };
        Self { depth, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds an item, and waits for room before. Returns false if the receiver takes no more items.
    pub(super) fn send(&self, item: T) -> bool {
        let mut state = self.wait_while(|state| state.items.len() >= self.depth && !state.is_closed);
        if state.is_closed {
            return false;
        }
        state.items.push_back(item);
        self.wake(state);
        true
    }

    /// Waits until the receiver has taken all items and waits for another one, or takes no more.
    pub(super) fn wait_until_awaited(&self) {
        let is_busy = |state: &QueueState<T>| !(state.items.is_empty() && state.is_awaited);
        drop(self.wait_while(|state| is_busy(state) && !state.is_closed));
    }

    /// Tells the receiver that no item follows.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        self.wake(state);
    }

    /// Waits for the next item. Returns `None` if there are no more.
    pub(super) fn receive(&self) -> Option<T> {
        let mut state = self.lock();
        state.is_awaited = true;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| state.items.is_empty() && !state.has_ended);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        self.take(&mut state)
    }

    /// As [`receive`](Self::receive), but does not wait: the queue wakes the task of `cx` once there is an item.
    #[cfg(feature = "stream")]
    pub(super) fn poll_receive(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.lock();
        if state.items.is_empty() && !state.has_ended {
            state.is_awaited = true;
            let replaced = state.waker.replace(cx.waker().clone());
            self.changed.notify_all();
            drop(state);
            // As in `wake`: the drop may be that of a task.
            drop(replaced);
            return Poll::Pending;
        }
        Poll::Ready(self.take(&mut state))
    }

    /// Drops all items and takes no more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let items = std::mem::take(&mut state.items);
        self.changed.notify_all();
        drop(state);
        // The items are the user's: their destructors may take long, or use the queue's owner.
        drop(items);
    }

    fn take(&self, state: &mut QueueState<T>) -> Option<T> {
        state.is_awaited = false;
        self.changed.notify_all();
        state.items.pop_front()
    }

    /// Wakes the receiver, after the lock is released: the waker is code of an async runtime, which may drop the
    /// task, and with it the stream that owns this queue.
    fn wake(&self, mut state: MutexGuard<'_, QueueState<T>>) {
        self.changed.notify_all();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wait_while(&self, is_waiting: impl Fn(&QueueState<T>) -> bool) -> MutexGuard<'_, QueueState<T>> {
        let waited = self.changed.wait_while(self.lock(), |state| is_waiting(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
