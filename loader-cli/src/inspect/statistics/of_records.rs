//! The statistics of records.

use loader_data::{Record, Value};

use super::{MAX_FIELDS, RepeatedKeys, Seen, Statistics, elements};

impl Statistics {
    /// Notes that the sample has `key`, as an earlier sample of its archive.
    pub(in super::super) fn add_repeated_key(&mut self, key: String) {
        self.repeated_keys.merge(RepeatedKeys { samples: 1, examples: vec![key] });
    }
}

/// Returns the statistics of a record.
pub(crate) fn of_record(record: &Record) -> Statistics {
    let mut statistics = Statistics { samples: 1, ..Statistics::default() };
    add_fields(record, "", &mut statistics);
    statistics
}

fn add_fields(record: &Record, prefix: &str, statistics: &mut Statistics) {
    for (name, value) in record.iter() {
        let name = format!("{prefix}{name}");
        match value {
            Value::Record(inner) => add_fields(inner, &format!("{name}."), statistics),
            _ if statistics.fields.len() < MAX_FIELDS => statistics.add(name.clone(), seen(value)),
            _ => statistics.has_more_fields = true,
        }
        if let Value::List(items) = value {
            let mut of_items = Statistics::default();
            add_items(items, &format!("{name}[]"), &mut of_items);
            // The statistics of samples are merged as those of one sample.
            statistics.merge(of_items);
        }
    }
}

/// Adds the fields of the records among the items of a list.
fn add_items(items: &[Value], name: &str, statistics: &mut Statistics) {
    for item in items {
        match item {
            Value::Record(inner) => {
                let mut one = Statistics::default();
                add_fields(inner, &format!("{name}."), &mut one);
                statistics.merge(one);
            }
            Value::List(items) => add_items(items, &format!("{name}[]"), statistics),
            _ => {}
        }
    }
}

fn seen(value: &Value) -> Seen<'_> {
    /// Maximum number of characters of a text that is counted as a value.
    const MAX_VALUE_CHARS: usize = 40;

    let nothing = Seen { kind: "null", shape: &[], bytes: 0, length: None, number: None, value: None };
    match value {
        Value::Bool(value) => Seen { kind: "boolean", bytes: 1, value: Some(value.to_string()), ..nothing },
        Value::Number(number) => {
            // What is not finite is null in JSON, and not a number here either.
            let json = serde_json::to_value(value).ok().filter(serde_json::Value::is_number);
            let integer = json.as_ref().filter(|json| json.is_i64() || json.is_u64());
            Seen {
                kind: number.dtype().name(),
                bytes: number.as_bytes().len() as u64,
                number: json.as_ref().and_then(serde_json::Value::as_f64),
                value: integer.map(ToString::to_string),
                ..nothing
            }
        }
        Value::Text(text) => {
            let chars = text.chars().count();
            let value = (chars <= MAX_VALUE_CHARS).then(|| text.clone());
            Seen { kind: "text", bytes: text.len() as u64, length: Some(chars as u64), value, ..nothing }
        }
        Value::Bytes(bytes) => {
            let len = bytes.len() as u64;
            Seen { kind: "bytes", bytes: len, length: Some(len), ..nothing }
        }
        Value::Tensor(tensor) | Value::Ragged(tensor, _) => Seen {
            kind: tensor.dtype().name(),
            shape: tensor.shape(),
            bytes: tensor.as_bytes().len() as u64,
            length: Some(elements(tensor.shape())),
            ..nothing
        },
        Value::List(items) => {
            // The bytes of records are those of their fields.
            let bytes = items.iter().map(|item| seen(item).bytes).sum();
            Seen { kind: "list", bytes, length: Some(items.len() as u64), ..nothing }
        }
        _ => nothing,
    }
}

#[cfg(test)]
mod tests {
    use loader_core::Tensor;

    use super::*;

    #[test]
    fn all_elements_of_a_tensor_count() {
        let mut record = Record::default();
        record.set("t", Tensor::<f32>::zeros([2, 3]).unwrap());
        let found = of_record(&record);
        assert_eq!((found.bytes, found.fields[0].lengths.range.min), (24, 6.0));
    }

    #[test]
    fn the_fields_of_records_in_a_list_are_described() {
        let text = r#"{"chat": [{"role": "user", "text": "hello"}, {"role": "bot", "text": "hi", "n": [[{"x": 1}]]}]}"#;
        let found = of_record(&serde_json::from_str(text).unwrap());
        let names: Vec<_> = found.fields.iter().map(|field| (field.name.as_str(), field.samples)).collect();
        let expected =
            [("chat", 1), ("chat[].role", 2), ("chat[].text", 2), ("chat[].n", 1), ("chat[].n[][].x", 1)];
        assert_eq!(names, expected);
        assert_eq!((found.samples, found.bytes), (1, 4 + 5 + 3 + 2 + 8));
        assert_eq!(found.fields[1].values.as_ref().unwrap().len(), 2);
    }
}
