//! The schema of a value: the names, kinds and order of what its `Serialize` implementation writes, without the values.
//!
//! The encoding of a value has neither names nor kinds. Two programs of different source can therefore give the same
//! bytes to different fields. Each program computes the schema of the same value, and a worker with another schema than
//! main's loads no batch.
//!
//! Both programs compute it from a decoded copy of the same bytes. It depends on the value, because `None`, an empty
//! sequence and a variant do not show what they could contain. It does not depend on the compiler, or on the order in
//! which a hash map lists its entries.
//!
//! Alternatives considered:
//! - Recording what `Deserialize` implementations ask for while they decode. Rejected because a worker only serialises
//!   batches, and because the recordings of one type's `Serialize` and `Deserialize` cannot be compared with each other.
//! - Following the types without a value, with `Deserialize` and made-up data. Rejected because an implementation that
//!   checks its data, such as that of a tensor, refuses made-up data.
//! - A format that contains names and kinds. Rejected because every dataset and every batch would be larger and slower,
//!   also those that stay within one program.
//! - A hash of the source, or of the build. Rejected because programs may differ in everything but the dataset.

mod parts;
mod recorder;

use std::cell::Cell;

use serde::{Deserialize, Serialize};

use crate::attach;
use recorder::Recorder;

/// Number of rows that a long list serialises while [`is_recording`] returns true, and of equal elements after which
/// the rest of a sequence is not visited.
pub const ROWS: usize = 16;

/// Maximum number of bytes of [`Schema::types`], so that a schema fits a frame.
const MAX_TYPES: usize = 8 * 1024;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// The schema of a value. The default is that of a value that cannot be serialised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// Hash of the whole schema.
    hash: u64,
    /// The structs and variants in the value, sorted, for messages: `Range { low: f32, high: f32 }`. Empty if there
    /// are too many.
    types: Vec<String>,
}

impl Schema {
    /// Returns the schema of `value`. Serialises `value` without writing its content anywhere: nothing is attached, and
    /// the elements of a long sequence of equal elements are not visited.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        let _recording = Recording::start();
        let mut recorder = Recorder::default();
        match attach::without_attachments(|| value.serialize(&mut recorder)) {
            Ok(part) => Self { hash: part.hash, types: cut(recorder.into_types()) },
            Err(_) => Self::default(),
        }
    }

    /// Compares main's schema with the `worker`'s schema of the same value. Returns `None` if they are equal. Otherwise
    /// returns what differs, for a message.
    pub fn difference(&self, worker: &Self) -> Option<String> {
        if self.hash == worker.hash {
            return None;
        }
        let missing = |of: &Self, from: &Self| {
            of.types.iter().filter(|ours| !from.types.contains(ours)).cloned().collect::<Vec<_>>()
        };
        let (main, worker) = (missing(self, worker), missing(worker, self));
        let namesakes = main.iter().find_map(|ours| {
            let theirs = worker.iter().find(|theirs| name_of(theirs) == name_of(ours))?;
            Some((ours, theirs))
        });
        Some(match namesakes.or_else(|| main.first().zip(worker.first())) {
            Some((ours, theirs)) => {
                format!("the main program has `{ours}`, and the worker program has `{theirs}`")
            }
            None => "the types of its parts differ".to_owned(),
        })
    }
}

/// True while this thread computes a schema. A list that is slow to serialise then serialises its first [`ROWS`] rows
/// only.
pub fn is_recording() -> bool {
    RECORDING.get()
}

/// Sets [`RECORDING`] back on drop, even when user code panics.
struct Recording(bool);

impl Recording {
    fn start() -> Self {
        Self(RECORDING.replace(true))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.set(self.0);
    }
}

/// Returns the name of a struct, or the name of an enum and its variant.
fn name_of(declared: &str) -> &str {
    declared.split([' ', '(']).next().unwrap_or_default()
}

fn cut(types: Vec<String>) -> Vec<String> {
    match types.iter().map(String::len).sum::<usize>() {
        0..=MAX_TYPES => types,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        collections::{BTreeMap, HashMap, HashSet},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::codec;

    #[derive(Clone, Serialize, Deserialize)]
    struct Range {
        low: f32,
        high: f32,
    }

    /// Types of the same names as in the parent module, from other source.
    mod other {
        use serde::{Deserialize, Serialize};

        #[derive(Serialize, Deserialize)]
        pub(super) struct Range {
            pub(super) high: f32,
            pub(super) low: f32,
        }

        #[derive(Serialize, Deserialize)]
        pub(super) enum Step {
            Flip(Range),
            Crop(Range),
        }
    }

    #[derive(Serialize, Deserialize)]
    enum Step {
        Crop(Range),
        Flip(Range),
        Rotate,
    }

    const RANGE: Range = Range { low: 1.0, high: 2.0 };

    /// Decodes `value` as a `U`, and compares the schemas of both.
    fn sent<T: Serialize, U: Serialize + serde::de::DeserializeOwned>(value: &T) -> Option<String> {
        let received: U = codec::decode(&codec::encode(value).unwrap()).unwrap();
        Schema::of(value).difference(&Schema::of(&received))
    }

    #[test]
    fn exchanged_fields_differ_and_are_named() {
        assert_eq!(sent::<_, Range>(&RANGE), None);
        let difference = sent::<_, other::Range>(&RANGE).unwrap();
        assert!(difference.contains("main program has `Range { low: f32, high: f32 }`"), "{difference}");
        assert!(difference.contains("worker program has `Range { high: f32, low: f32 }`"), "{difference}");
        // The same in any place of a larger value.
        assert!(sent::<_, (u8, Option<Box<other::Range>>)>(&(1u8, Some(Box::new(RANGE)))).is_some());
        assert!(sent::<_, Vec<Vec<other::Range>>>(&vec![vec![RANGE]]).is_some());
        assert!(
            sent::<_, BTreeMap<u8, other::Range>>(&[(1u8, RANGE)].into_iter().collect::<BTreeMap<_, _>>())
                .is_some()
        );
    }

    #[test]
    fn exchanged_variants_and_kinds_of_one_size_differ() {
        for step in [Step::Crop(RANGE), Step::Flip(RANGE)] {
            assert_eq!(sent::<_, Step>(&step), None);
            assert!(sent::<_, other::Step>(&step).is_some());
        }
        assert!(sent::<_, (i32, f32)>(&(1u32, 1.0f32)).is_some());
        assert!(sent::<_, Vec<i32>>(&vec![1u32]).is_some());
        assert!(sent::<_, [u8; 8]>(&1u64).is_some());
        assert!(sent::<_, (f32, u32, u32)>(&(1.0f32, 1.0f32, 1u32)).is_some());
    }

    /// Generic types of one name can contain each other's types.
    #[test]
    fn types_of_the_same_name_are_told_apart() {
        #[derive(Serialize, Deserialize)]
        struct Pair<A, B> {
            a: A,
            b: B,
        }
        let value = (Pair { a: 1u32, b: 1f32 }, Pair { a: 1f32, b: 1u32 });
        assert!(sent::<_, (Pair<f32, u32>, Pair<u32, f32>)>(&value).is_some());
    }

    /// The late element of a sequence may be the only one that shows a type.
    #[test]
    fn every_element_counts_if_elements_can_differ() {
        let mut steps: Vec<_> = (0..1000).map(|_| None).collect();
        steps.push(Some(RANGE));
        assert!(sent::<_, Vec<Option<other::Range>>>(&steps).is_some());
        assert_eq!(sent::<_, Vec<Option<Range>>>(&steps), None);
    }

    #[test]
    fn the_order_of_a_hash_map_does_not_count() {
        let content = |n: u32| (!n.is_multiple_of(3)).then(|| vec![RANGE; (n % 2) as usize]);
        let map: HashMap<u32, _> = (0..1000).map(|n| (n, content(n))).collect();
        let set: HashSet<Option<u32>> = (0..100).map(|n| (n > 0).then_some(n)).collect();
        // Each copy has another order.
        for _ in 0..10 {
            assert_eq!(
                sent::<_, (HashMap<u32, Option<Vec<Range>>>, HashSet<Option<u32>>)>(&(&map, &set)),
                None
            );
        }
    }

    #[test]
    fn the_order_of_a_map_does_not_count_if_values_of_one_type_have_different_kinds() {
        struct Number(u64);
        impl Serialize for Number {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match u32::try_from(self.0) {
                    Ok(short) => short.serialize(serializer),
                    Err(_) => self.0.serialize(serializer),
                }
            }
        }

        let with_long_number = |at: u32| -> BTreeMap<u32, Number> {
            (0..100).map(|n| (n, Number(if n == at { u64::MAX } else { 0 }))).collect()
        };
        assert_eq!(Schema::of(&with_long_number(0)), Schema::of(&with_long_number(99)));
    }

    #[test]
    fn a_difference_names_all_kinds() {
        #[derive(Serialize)]
        struct All(bool, i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, f32, f64, char, &'static str, ());
        #[derive(Serialize)]
        struct Parts<'a> {
            all: All,
            pair: (Option<u8>, Option<u8>),
            list: Vec<Option<u8>>,
            map: BTreeMap<u8, Step>,
            path: &'a str,
        }

        let all = All(true, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 'a', "", ());
        let map = BTreeMap::from([(1, Step::Rotate)]);
        let parts = Parts { all, pair: (None, Some(1)), list: vec![Some(1), Some(2)], map, path: "a" };
        assert_eq!(
            Schema::of(&parts).types,
            [
                "All(bool, i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, f32, f64, char, string, ())",
                "Parts { all: All, pair: (None, Some(u8)), list: [Some(u8)], map: {u8: Step::Rotate}, path: string }",
                "Step::Rotate (variant 2)",
            ]
        );
    }

    /// A list of names, as a dataset of files has, is not visited.
    #[test]
    fn elements_that_cannot_differ_are_not_visited() {
        struct Counted<'a>(&'a Cell<usize>);
        impl Serialize for Counted<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.set(self.0.get() + 1);
                serializer.serialize_str("name")
            }
        }

        let visits = Cell::new(0);
        let names: Vec<_> = (0..1_000_000).map(|_| Counted(&visits)).collect();
        let started = Instant::now();
        let schema = Schema::of(&names);
        assert!(visits.get() <= ROWS, "{} visits", visits.get());
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_eq!(schema, Schema::of(&vec!["one name".to_owned(); ROWS]));
    }

    #[test]
    fn a_value_that_cannot_be_serialised_differs_from_others() {
        struct Fails;
        impl Serialize for Fails {
            fn serialize<S: serde::Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
                assert!(is_recording());
                Err(serde::ser::Error::custom("for the test"))
            }
        }

        assert_eq!(Schema::of(&(1u8, Fails)).difference(&Schema::of(&Fails)), None);
        assert!(Schema::of(&1u8).difference(&Schema::of(&Fails)).is_some());
        assert!(!is_recording());
    }

    /// Values with many different parts.
    fn different_parts() -> Vec<[Option<u8>; 11]> {
        (0..2048).map(|n: u32| std::array::from_fn(|bit| (n >> bit & 1 == 1).then_some(0))).collect()
    }

    #[test]
    fn the_texts_of_many_types_are_left_out() {
        #[derive(Serialize)]
        struct Row([Option<u8>; 11]);

        let rows: Vec<_> = different_parts().into_iter().take(500).map(Row).collect();
        let schema = Schema::of(&rows);
        assert_eq!(schema.types, [""; 0]);
        assert!(schema.difference(&Schema::of(&(1u8, rows))).is_some());
    }

    #[test]
    fn a_difference_names_no_equal_types_if_texts_are_left_out() {
        let (parts, step) = (different_parts(), Step::Crop(RANGE));
        let schema = Schema::of(&(Step::Rotate, &parts, &step));
        let difference = schema.difference(&Schema::of(&(step, &parts, Step::Rotate))).unwrap();
        assert_eq!(difference, "the types of its parts differ");
    }
}
