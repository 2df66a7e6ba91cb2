//! Iterators that own the values they borrow from.
//!
//! The iterator of an iterable dataset borrows from the dataset and from its context, and must be stored next
//! to both between two batches. An async block is such a self-referential type in safe Rust: [`Generator`]
//! polls the block by hand and receives one item per poll. Alternative considered: a crate for
//! self-referential types. Rejected because it generates `unsafe` code here.

use std::{
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

/// An iterator over the items that an async block passes to its [`Giver`].
pub(crate) struct Generator<'a, T> {
    /// `None` after the block has ended.
    block: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    giver: Giver<T>,
}

/// Passes items from the async block to its [`Generator`].
pub(crate) struct Giver<T>(Arc<Mutex<Option<T>>>);

impl<'a, T> Generator<'a, T> {
    /// Creates an iterator over the items that `block` passes to its argument.
    pub(crate) fn new<F>(block: impl FnOnce(Giver<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'a,
    {
        let giver = Giver(Arc::new(Mutex::new(None)));
        let block = block(Giver(Arc::clone(&giver.0)));
        Self { block: Some(Box::pin(block)), giver }
    }
}

impl<T> Giver<T> {
    /// Passes one item to the generator. The block continues when the generator's `next` is called again.
    pub(crate) async fn give(&self, item: T) {
        *self.item() = Some(item);
        let mut given = false;
        std::future::poll_fn(|_| match mem::replace(&mut given, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
    }

    // The lock is never contended, because the block runs only while `next` polls it.
    fn item(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Iterator for Generator<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // The field is `None` during the poll, so that a block that panics is not polled again.
        let mut block = self.block.take()?;
        match block.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => None,
            Poll::Pending => {
                self.block = Some(block);
                self.giver.item().take()
            }
        }
    }
}

impl<T> fmt::Debug for Generator<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator").field("ended", &self.block.is_none()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_block_can_borrow_from_its_own_locals() {
        let mut generator = Generator::new(|giver| async move {
            let text = String::from("a b c");
            for word in text.split(' ') {
                giver.give(word.to_owned()).await;
            }
        });
        assert_eq!(generator.by_ref().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(generator.next(), None);
    }

    #[test]
    fn a_panic_ends_the_generator() {
        let mut generator = Generator::new(|giver| async move {
            giver.give(1).await;
            panic!("no more");
        });
        assert_eq!(generator.next(), Some(1));
        assert!(catch_unwind(AssertUnwindSafe(|| generator.next())).is_err());
        assert_eq!(generator.next(), None);
    }
}
