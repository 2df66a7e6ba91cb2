//! The names of fields, which a thread shares between the records that it makes.

use std::{cell::RefCell, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// Maximum number of names that a thread remembers. Records may have data as names, and a longer search costs
/// more than it saves.
const MAX_NAMES: usize = 64;

/// Max length of a name that a thread remembers, in bytes.
const MAX_LEN: usize = 256;

/// The name of a field, which deserialises as a [shared] one.
pub(super) struct Name(pub(super) Arc<str>);

/// The names that a thread has seen.
#[derive(Default)]
struct Names {
    seen: Vec<Arc<str>>,
    /// Where the search begins: behind the name that was found last, because the records of a dataset usually
    /// have their fields in the same order.
    next: usize,
}

thread_local! {
    static NAMES: RefCell<Names> = RefCell::default();
}

impl Names {
    fn share(&mut self, name: &str) -> Arc<str> {
        let (before, after) = self.seen.split_at(self.next);
        let found = after.iter().chain(before).position(|seen| **seen == *name);
        if let Some(position) = found.map(|distance| (self.next + distance) % self.seen.len()) {
            self.next = (position + 1) % self.seen.len();
            return Arc::clone(&self.seen[position]);
        }
        let name: Arc<str> = name.into();
        if self.seen.len() < MAX_NAMES && name.len() <= MAX_LEN {
            self.seen.push(Arc::clone(&name));
        }
        name
    }
}

/// Returns `name`, shared with the records that this thread has made before.
pub(crate) fn shared(name: &str) -> Arc<str> {
    NAMES.with_borrow_mut(|names| names.share(name))
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
                Ok(Name(shared(name)))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_their_number_is_bounded() {
        let mut names = Names::default();
        let first = ["a", "b", "c"].map(|name| names.share(name));
        for name in ["a", "b", "c", "c", "a", "b"] {
            let again = names.share(name);
            assert!(*again == *name && first.iter().any(|seen| Arc::ptr_eq(seen, &again)), "{name}");
        }
        names.share(&"d".repeat(MAX_LEN + 1));
        assert_eq!(names.seen.len(), 3, "a long name is not remembered");
        for number in 0..1000 {
            assert_eq!(*names.share(&number.to_string()), number.to_string());
        }
        assert_eq!(names.seen.len(), MAX_NAMES);
        assert!(Arc::ptr_eq(&names.share("b"), &first[1]));
    }
}
