//! Iterators that own what they borrow from.
//!
//! An iterable dataset's iterator borrows from the dataset and from its context, and has to live next to both, between one batch and the
//! next. Two ways were weighed: a package for self-referential types, which generates `unsafe` code here, and an async block, which is
//! such a type in safe Rust. The block won: it is polled by hand, and gives one item each time.

use std::{
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

/// An iterator over what an async block gives.
pub(crate) struct Generator<'a, T> {
    /// `None` once it has ended.
    block: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    hand: Giver<T>,
}

/// The block's side: what it gives.
pub(crate) struct Giver<T>(Arc<Mutex<Option<T>>>);

impl<'a, T> Generator<'a, T> {
    /// The items that `block` gives to its argument.
    pub(crate) fn new<F>(block: impl FnOnce(Giver<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'a,
    {
        let hand = Giver(Arc::new(Mutex::new(None)));
        let block = block(Giver(Arc::clone(&hand.0)));
        Self { block: Some(Box::pin(block)), hand }
    }
}

impl<T> Giver<T> {
    /// Gives one item, and goes on when the next is asked for.
    pub(crate) async fn give(&self, item: T) {
        *self.hand() = Some(item);
        let mut given = false;
        std::future::poll_fn(|_| match mem::replace(&mut given, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
    }

    // Never contended: the block runs only while it is polled.
    fn hand(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Iterator for Generator<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // Taken out for the time: a block that panics is not polled again.
        let mut block = self.block.take()?;
        match block.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => None,
            Poll::Pending => {
                self.block = Some(block);
                self.hand.hand().take()
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
    fn it_gives_what_borrows_from_its_own() {
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
    fn after_a_panic_it_is_over() {
        let mut generator = Generator::new(|giver| async move {
            giver.give(1).await;
            panic!("no more");
        });
        assert_eq!(generator.next(), Some(1));
        assert!(catch_unwind(AssertUnwindSafe(|| generator.next())).is_err());
        assert_eq!(generator.next(), None);
    }
}
