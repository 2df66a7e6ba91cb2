//! What is known of the samples that were read. Workers make the statistics of a batch, and main merges them,
//! so the memory does not grow with the number of samples.

#[cfg(feature = "formats")]
pub(super) mod of_records;

use std::collections::BTreeMap;

use loader_core::{
    Tensor,
    collate::{CollateError, ContentHash, Sample, Stack},
};
use serde::{Deserialize, Serialize};

/// Maximum number of distinct values of a field that are counted.
const MAX_VALUES: usize = 20;

/// Maximum number of examples of keys that came before.
const MAX_KEYS: usize = 5;

/// Maximum number of fields. Samples may all have different ones.
const MAX_FIELDS: usize = 1000;

/// The statistics of samples. As a sample of a loader, it is about one sample; a batch is about all its
/// samples.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Statistics {
    pub(crate) samples: u64,
    /// Bytes of the values of all samples.
    pub(crate) bytes: u64,
    /// The fields in the order in which they were met.
    pub(crate) fields: Vec<Field>,
    /// True if there are more than [`MAX_FIELDS`] fields; the others are left out.
    pub(crate) has_more_fields: bool,
    pub(crate) repeated_keys: RepeatedKeys,
}

/// Samples of archives whose key an earlier sample of the same archive has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RepeatedKeys {
    pub(crate) samples: u64,
    /// The first [`MAX_KEYS`] of the keys, with their archives.
    pub(crate) examples: Vec<String>,
}

/// A field of samples. A field of a record in a record has a name with a dot, and one of the records in a list a name with
/// `[].`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// Number of samples, or of items of lists, that have the field, even if it is null.
    pub(crate) samples: u64,
    pub(crate) types: Vec<Type>,
    /// Lengths of texts (characters), bytes, lists (items) and tensors (elements).
    pub(crate) lengths: Histogram,
    /// Values that are numbers.
    pub(crate) numbers: Range,
    /// Number of samples with each value of booleans, integers and short texts; `None` if there are more than
    /// [`MAX_VALUES`], or others.
    pub(crate) values: Option<BTreeMap<String, u64>>,
}

/// A type of the values of a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Type {
    /// Such as `text`, or a dtype for numbers and tensors.
    #[serde(rename = "type")]
    pub(crate) name: String,
    pub(crate) samples: u64,
    /// For each dimension of a tensor the smallest and the largest size. A number has no dimensions.
    pub(crate) shape: Vec<(usize, usize)>,
}

/// Counts of lengths, in buckets that double.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Histogram {
    /// Number of lengths of 0; of 1; of 2 and 3; of 4 to 7; and so on.
    counts: Vec<u64>,
    pub(crate) range: Range,
}

/// Smallest and largest of some numbers, and their mean.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    sum: f64,
}

/// A value of a field.
pub(crate) struct Seen<'a> {
    /// Name of the type.
    pub(crate) kind: &'a str,
    pub(crate) shape: &'a [usize],
    /// Number of bytes.
    pub(crate) bytes: u64,
    pub(crate) length: Option<u64>,
    pub(crate) number: Option<f64>,
    /// The value, if it is a boolean, an integer or a short text.
    pub(crate) value: Option<String>,
}

impl Statistics {
    /// Adds a value of the field `name` of the only sample.
    pub(crate) fn add(&mut self, name: String, seen: Seen<'_>) {
        self.bytes += seen.bytes;
        let mut lengths = Histogram::default();
        seen.length.into_iter().for_each(|length| lengths.add(length));
        let mut numbers = Range::default();
        seen.number.into_iter().for_each(|number| numbers.add(number));
        let shape = seen.shape.iter().map(|&size| (size, size)).collect();
        let types = vec![Type { name: seen.kind.to_owned(), samples: 1, shape }];
        // Null is not a value, so that a field that may be null has its other values counted.
        let values = match seen.value {
            None if seen.kind != "null" => None,
            value => Some(value.map(|value| (value, 1)).into_iter().collect()),
        };
        self.fields.push(Field { name, samples: 1, types, lengths, numbers, values });
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.has_more_fields |= other.has_more_fields;
        self.repeated_keys.merge(other.repeated_keys);
        for (position, field) in other.fields.into_iter().enumerate() {
            // Samples mostly have the same fields in the same order.
            let position = match self.fields.get(position) {
                Some(same) if same.name == field.name => Some(position),
                _ => self.fields.iter().position(|known| known.name == field.name),
            };
            match position {
                Some(position) => self.fields[position].merge(field),
                None if self.fields.len() < MAX_FIELDS => self.fields.push(field),
                None => self.has_more_fields = true,
            }
        }
    }
}

impl RepeatedKeys {
    fn merge(&mut self, other: Self) {
        self.samples += other.samples;
        let room = MAX_KEYS - self.examples.len();
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

impl Field {
    fn merge(&mut self, other: Self) {
        self.samples += other.samples;
        self.lengths.merge(&other.lengths);
        self.numbers.merge(&other.numbers);
        for found in other.types {
            let is_same =
                |known: &&mut Type| known.name == found.name && known.shape.len() == found.shape.len();
            match self.types.iter_mut().find(is_same) {
                Some(known) => known.merge(&found),
                None => self.types.push(found),
            }
        }
        self.values = self.values.take().zip(other.values).and_then(|(mut values, others)| {
            for (value, samples) in others {
                *values.entry(value).or_default() += samples;
            }
            (values.len() <= MAX_VALUES).then_some(values)
        });
    }
}

impl Type {
    fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        for ((min, max), &(other_min, other_max)) in self.shape.iter_mut().zip(&other.shape) {
            (*min, *max) = ((*min).min(other_min), (*max).max(other_max));
        }
    }
}

impl Histogram {
    fn add(&mut self, length: u64) {
        let bucket = (u64::BITS - length.leading_zeros()) as usize;
        self.counts.resize(self.counts.len().max(bucket + 1), 0);
        self.counts[bucket] += 1;
        self.range.add(length as f64);
    }

    fn merge(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.range.merge(&other.range);
    }

    /// Returns the smallest and the largest length of each bucket, and the number of lengths in it, from the
    /// first bucket to the last one that are not empty.
    pub(crate) fn buckets(&self) -> Vec<(u64, u64, u64)> {
        let first = self.counts.iter().position(|&count| count > 0).unwrap_or_default();
        let bucket = |(bucket, &count): (usize, &u64)| match bucket {
            0 => (0, 0, count),
            _ => (1 << (bucket - 1), u64::MAX >> (u64::BITS as usize - bucket), count),
        };
        self.counts.iter().enumerate().skip(first).map(bucket).collect()
    }
}

impl Range {
    fn add(&mut self, number: f64) {
        self.merge(&Self { count: 1, min: number, max: number, sum: number });
    }

    fn merge(&mut self, other: &Self) {
        *self = match (self.count, other.count) {
            (_, 0) => return,
            (0, _) => other.clone(),
            _ => Self {
                count: self.count + other.count,
                min: self.min.min(other.min),
                max: self.max.max(other.max),
                sum: self.sum + other.sum,
            },
        };
    }

    /// Returns the mean, or `None` if there are no numbers.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Returns the number of elements of a tensor.
fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|&size| size as u64).product()
}

/// Returns the statistics of an image of an image folder.
pub(crate) fn of_image((image, label): (Tensor<u8>, u32)) -> Statistics {
    let mut statistics = Statistics { samples: 1, ..Statistics::default() };
    // The elements are bytes.
    let (kind, bytes) = ("uint8", elements(image.shape()));
    let length = Some(bytes);
    let seen = Seen { kind, shape: image.shape(), bytes, length, number: None, value: None };
    statistics.add("image".to_owned(), seen);
    let seen = Seen {
        kind: "uint32",
        shape: &[],
        bytes: 4,
        length: None,
        number: Some(label.into()),
        value: Some(label.to_string()),
    };
    statistics.add("label".to_owned(), seen);
    statistics
}

impl Sample for Statistics {
    type Batch = Self;
    type Stack = Merged;

    fn stack(_samples: usize) -> Merged {
        Merged(Self::default())
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.value(self);
    }
}

/// The statistics of a batch while it is made.
#[derive(Debug)]
pub(crate) struct Merged(Statistics);

impl Stack for Merged {
    type Sample = Statistics;
    type Batch = Statistics;

    fn push(&mut self, sample: Statistics) -> Result<(), CollateError> {
        self.0.merge(sample);
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<Statistics, CollateError> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        let mut lengths = Histogram::default();
        [1, 2, 3, 4, 9, u64::MAX].into_iter().for_each(|length| lengths.add(length));
        let buckets = lengths.buckets();
        assert_eq!(buckets[..4], [(1, 1, 1), (2, 3, 2), (4, 7, 1), (8, 15, 1)]);
        assert_eq!(buckets.last(), Some(&(1 << 63, u64::MAX, 1)));
        let mut zero = Histogram::default();
        zero.add(0);
        assert_eq!(zero.buckets(), [(0, 0, 1)]);
    }

    #[test]
    fn all_elements_of_an_image_count() {
        let image = of_image((Tensor::zeros([3, 5, 4]).unwrap(), 7));
        assert_eq!(image.bytes, 60 + 4);
        assert_eq!((image.fields[0].lengths.range.min, image.fields[0].lengths.range.count), (60.0, 1));
    }

    #[test]
    fn statistics_stay_small() {
        let mut all = Statistics::default();
        for number in 0..2000_usize {
            let mut one = Statistics { samples: 1, ..Statistics::default() };
            let value = Some(number.to_string());
            let seen = Seen { kind: "int64", shape: &[], bytes: 8, length: None, number: Some(1.0), value };
            one.add("same".to_owned(), seen);
            let seen = Seen {
                kind: "uint8",
                shape: &[3, number],
                bytes: 1,
                length: Some(1),
                number: None,
                value: None,
            };
            one.add(format!("field {number}"), seen);
            all.merge(one);
        }
        assert_eq!((all.samples, all.bytes, all.fields.len()), (2000, 18_000, MAX_FIELDS));
        assert!(all.has_more_fields);
        assert_eq!((all.fields[0].samples, all.fields[0].values.as_ref()), (2000, None));
        assert_eq!(all.fields[0].numbers.mean(), Some(1.0));
        assert_eq!(all.fields[7].types[0].shape, [(3, 3), (6, 6)]);
    }
}
