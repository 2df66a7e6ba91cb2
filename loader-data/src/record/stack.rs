//! Collation of records.

use std::{ops::Range, sync::Arc};

use loader_core::{
    Sample,
    collate::{CollateError, CollateProblem, ContentHash, Convert, Stack},
    pack::Fill,
};

use super::{
    Columns, Record,
    field_stack::FieldStack,
    rows::{Fields, NamedValues, Row, Rows},
};

/// The [`Stack`] of [`Record`]: one stack for each field. All records must have the fields of the first
/// record.
#[derive(Debug)]
pub struct RecordStack {
    capacity: usize,
    fields: Option<Vec<(Arc<str>, FieldStack)>>,
    pending: Pending,
}

/// Rows of decoded columns whose numbers are not in the batch yet. They are copied together, column by
/// column.
#[derive(Debug, Default)]
struct Pending {
    /// What has the rows. The first row of each is stacked value by value, which checks that the others fit.
    sources: Vec<Arc<dyn Rows>>,
    /// For each field, whether the columns of all sources are [`numbers`](Rows::numbers). Other columns are
    /// stacked value by value.
    is_numbers: Vec<bool>,
    /// The rows in the order of the batch, with their source.
    runs: Vec<(usize, Range<usize>)>,
}

impl Sample for Record {
    type Batch = Columns;
    type Stack = RecordStack;

    fn stack(samples: usize) -> RecordStack {
        RecordStack { capacity: samples, fields: None, pending: Pending::default() }
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.value(self);
    }
}

impl Convert for Record {
    type Item = Keep;

    fn convert(self) -> Result<Keep, CollateError> {
        Ok(loader_core::collate::Keep(self))
    }
}

type Keep = loader_core::collate::Keep<Record>;

impl Stack for RecordStack {
    type Sample = Record;
    type Batch = Columns;

    fn push(&mut self, record: Record) -> Result<(), CollateError> {
        match record.fields {
            Fields::Row(row) => self.push_row(row),
            Fields::Values(values) => {
                self.copy_pending()?;
                self.push_values(values)
            }
        }
    }

    fn makes_tensors(&self) -> bool {
        self.fields.is_none()
    }

    fn finish(mut self) -> Result<Columns, CollateError> {
        self.copy_pending()?;
        let fields = self.fields.unwrap_or_default().into_iter();
        let columns = fields.map(|(name, stack)| {
            let column = stack.finish().map_err(|error| error.in_field(&*name))?;
            Ok((name, column))
        });
        Ok(Columns { columns: columns.collect::<Result<_, CollateError>>()? })
    }

    fn fill(batch: &Columns) -> Option<Fill> {
        batch.fill()
    }
}

impl RecordStack {
    fn push_values(&mut self, mut values: NamedValues) -> Result<(), CollateError> {
        let Some(stacks) = &mut self.fields else {
            let mut stacks = Vec::with_capacity(values.len());
            for (name, value) in values {
                let mut stack = FieldStack::new(&value, self.capacity);
                stack.push(value).map_err(|error| error.in_field(&*name))?;
                stacks.push((name, stack));
            }
            self.fields = Some(stacks);
            return Ok(());
        };
        // Records of one dataset usually have their fields in the same order.
        if !is_same(stacks, values.iter().map(|(name, _)| name)) {
            let mut sorted = Vec::with_capacity(stacks.len());
            for (name, _) in &*stacks {
                let missing = || CollateProblem::MissingKey { key: format!("{name:?}") };
                let place = values.iter().position(|(other, _)| other == name).ok_or_else(missing)?;
                sorted.push(values.remove(place));
            }
            if let Some((name, _)) = values.first() {
                return Err(CollateProblem::NewKey { key: format!("{name:?}") }.into());
            }
            values = sorted;
        }
        for ((name, stack), (_, value)) in stacks.iter_mut().zip(values) {
            stack.push(value).map_err(|error| error.in_field(&**name))?;
        }
        Ok(())
    }

    fn push_row(&mut self, record: Row) -> Result<(), CollateError> {
        let Pending { sources, is_numbers, runs } = &mut self.pending;
        let Some(source) = sources.iter().rposition(|source| Arc::ptr_eq(source, &record.rows)) else {
            return self.push_first(record);
        };
        let Row { rows, row, .. } = record;
        let stacks = self.fields.iter_mut().flatten().zip(&*is_numbers).enumerate();
        for (column, ((name, stack), _)) in stacks.filter(|(_, (_, is_numbers))| !**is_numbers) {
            let value =
                rows.value(column, row).map_err(|problem| CollateProblem::Custom(problem.into()).into());
            value.and_then(|value| stack.push(value)).map_err(|error| error.in_field(&**name))?;
        }
        match runs.last_mut() {
            Some((last, run)) if *last == source && run.end == row => run.end += 1,
            _ => runs.push((source, row..row + 1)),
        }
        Ok(())
    }

    /// Adds the first row of a source, value by value.
    fn push_first(&mut self, record: Row) -> Result<(), CollateError> {
        let rows = Arc::clone(&record.rows);
        self.copy_pending()?;
        // If only the batch still has a source, no more rows of it can come.
        self.pending.sources.retain(|source| Arc::strong_count(source) > 1);
        self.push_values(Fields::Row(record).into_values())?;
        let stacks = self.fields.as_deref().unwrap_or_default();
        if is_same(stacks, rows.names()) {
            let pending = &mut self.pending;
            pending.is_numbers.resize(stacks.len(), true);
            for (column, (is_numbers, (_, stack))) in pending.is_numbers.iter_mut().zip(stacks).enumerate() {
                *is_numbers &= matches!(stack, FieldStack::Tensor(_)) && rows.numbers(column).is_some();
            }
            pending.sources.push(rows);
        }
        Ok(())
    }

    /// Copies the numbers of the pending rows.
    fn copy_pending(&mut self) -> Result<(), CollateError> {
        let Pending { sources, is_numbers, runs } = &mut self.pending;
        let stacks = self.fields.iter_mut().flatten().zip(is_numbers).enumerate();
        for (column, ((name, stack), _)) in stacks.filter(|(_, (_, is_numbers))| **is_numbers) {
            for runs in runs.chunk_by(|(one, _), (other, _)| one == other) {
                let copied = stack.push_runs(sources[runs[0].0].numbers(column), runs);
                copied.map_err(|problem| CollateError::from(problem).in_field(&**name))?;
            }
        }
        runs.clear();
        Ok(())
    }
}

/// True if the fields of a record have the names of `stacks`, in the same order.
fn is_same<'a>(
    stacks: &[(Arc<str>, FieldStack)],
    names: impl IntoIterator<Item = &'a Arc<str>, IntoIter: ExactSizeIterator>,
) -> bool {
    let names = names.into_iter();
    names.len() == stacks.len()
        && stacks.iter().zip(names).all(|((one, _), other)| Arc::ptr_eq(one, other) || one == other)
}

#[cfg(test)]
mod tests {
    use loader_core::{AnyTensor, Bool, DType, Tensor};

    use super::*;
    use crate::{
        error::DataProblem,
        record::{Column, FieldOptions, Value, rows::Numbers},
    };

    fn batch(options: &FieldOptions, lines: &[&str]) -> Result<Columns, CollateError> {
        let mut stack = Record::stack(lines.len());
        for line in lines {
            stack.push(options.apply(serde_json::from_str(line).unwrap()).unwrap())?;
        }
        stack.finish()
    }

    #[test]
    fn each_kind_of_value_becomes_a_column() {
        let lines = [
            r#"{"n": 1, "flag": true, "t": [1.5, 2], "s": "a", "r": {"x": 1}, "l": ["a", 1], "seq": []}"#,
            r#"{"flag": false, "n": 2, "t": [3.5, 4], "s": "b", "r": {"x": 2}, "l": [], "seq": [7, 8]}"#,
            r#"{"n": 3, "flag": true, "t": [0.5, 1], "s": "c", "r": {"x": 3}, "l": ["b"], "seq": [9]}"#,
        ];
        let batch = batch(&FieldOptions::new().pad("seq", -1.0), &lines).unwrap();
        assert_eq!(batch.tensor::<i64>("n").unwrap().as_slice(), [1, 2, 3]);
        assert_eq!(batch.tensor::<Bool>("flag").unwrap().as_slice(), [true, false, true]);
        assert_eq!(batch.tensor::<f64>("t").unwrap().shape(), [3, 2]);
        assert_eq!(batch["s"].texts().unwrap(), ["a", "b", "c"]);
        assert!(
            matches!(&batch["r"], Column::Columns(inner) if inner.tensor::<i64>("x").unwrap().len() == 3)
        );
        assert!(matches!(&batch["l"], Column::Values(values) if values.len() == 3));
        let Column::Padded { values, lengths } = &batch["seq"] else { panic!("{:?}", batch["seq"]) };
        assert_eq!((values.shape(), lengths.as_slice()), ([3, 2].as_slice(), [0, 2, 1].as_slice()));
        assert_eq!(values.as_slice::<i64>().unwrap(), [-1, -1, 7, 8, 9, -1]);
    }

    #[test]
    fn records_that_do_not_fit_are_refused_with_the_name_of_the_field() {
        let refused = |lines: &[&str]| batch(&FieldOptions::new(), lines).unwrap_err().to_string();
        let line = |line: &str| format!("; for records, set `{line}` in the section `[dataset]` of a config");
        let dtypes = refused(&[r#"{"a": 1}"#, r#"{"a": true}"#]);
        assert!(dtypes.starts_with("field `a`: dtype bool differs"), "{dtypes}");
        assert!(dtypes.ends_with(&line("dtypes = { a = \"int64\" }")), "{dtypes}");
        let dtypes = refused(&[r#"{"a": true}"#, r#"{"a": 1}"#]);
        assert!(dtypes.ends_with(&line("dtypes = { a = \"int64\" }")), "{dtypes}");
        let ragged = refused(&[r#"{"a": [1]}"#, r#"{"a": [1, 2]}"#]);
        assert!(ragged.starts_with("field `a`: shape [2] differs"), "{ragged}");
        assert!(ragged.ends_with(&line("pad = { a = 0 }")), "{ragged}");
        let items = refused(&[r#"{"a": [[1]]}"#, r#"{"a": [[1, 2]]}"#]);
        assert!(items.starts_with("field `a`: shape [1, 2] differs"), "{items}");
        assert!(!items.contains("pad ="), "`pad` makes no item larger: {items}");
        let null = "field `a`: it is null, which no column of a batch can hold; leave out the record (in a stream of \
                    records, with `drop_nulls`), or fill the field if its values are numbers";
        let null = null.to_owned() + &line("fill = { a = 0 }");
        assert_eq!(refused(&[r#"{"a": 1}"#, r#"{"a": null}"#]), null);
        assert_eq!(refused(&[r#"{"a": null}"#]), null);
        let text = refused(&[r#"{"a": "x"}"#, r#"{"a": null}"#]);
        assert!(text.contains("it is null, but texts were before it"), "a number would not fit: {text}");
        assert!(
            refused(&[r#"{"a": 1}"#, r#"{"b": 1}"#])
                .contains("is missing; all samples of a batch must have the same keys")
        );
        assert!(
            refused(&[r#"{"a": {"x": 1}}"#, r#"{"a": {"x": ""}}"#]).starts_with("field `a.x`: it is a text")
        );
    }

    /// Returns the values and the lengths of the column `a` of a batch with `pad`.
    fn padded(pad: f64, lines: &[&str]) -> (AnyTensor, Vec<u64>) {
        let mut batch = batch(&FieldOptions::new().pad("a", pad), lines).unwrap();
        let Some(Column::Padded { values, lengths }) = batch.remove("a") else { panic!("{lines:?}") };
        (values, lengths.as_slice().to_vec())
    }

    #[test]
    fn a_batch_of_padded_sequences_without_items_is_padded() {
        let (values, lengths) = padded(0.0, &[r#"{"a": []}"#, r#"{"a": []}"#]);
        assert_eq!((values.dtype(), values.shape(), lengths), (DType::I64, [2, 0].as_slice(), vec![0, 0]));
        assert_eq!(padded(0.5, &[r#"{"a": []}"#]).0.dtype(), DType::F64);
        let options = FieldOptions::new().dtype("a", DType::U8).pad("a", 0.0);
        let typed = batch(&options, &[r#"{"a": []}"#]).unwrap();
        assert!(matches!(&typed["a"], Column::Padded { values, .. } if values.dtype() == DType::U8));
        // The other sequences decide the dtype and the shape of an item.
        for lines in [[r#"{"a": []}"#, r#"{"a": [[0.5, 1]]}"#], [r#"{"a": [[0.5, 1]]}"#, r#"{"a": []}"#]] {
            let (values, _) = padded(7.0, &lines);
            assert_eq!((values.dtype(), values.shape()), (DType::F64, [2, 1, 2].as_slice()));
        }
    }

    #[test]
    fn whether_lists_fit_does_not_depend_on_their_order() {
        let ways = |one: &str, other: &str| {
            let lines = [format!("{{\"a\": {one}}}"), format!("{{\"a\": {other}}}")];
            let batch =
                |order: [usize; 2]| batch(&FieldOptions::new(), &order.map(|number| lines[number].as_str()));
            [batch([0, 1]), batch([1, 0])]
        };
        for (one, other) in
            [("[]", "[1]"), ("[1]", "[1, 2]"), ("[[1], [2, 3]]", "[[1], [2]]"), ("[1]", r#"["x"]"#)]
        {
            assert!(ways(one, other).iter().all(Result::is_err), "{one} and {other}");
        }
        for (one, other) in [("[]", r#"["x"]"#), ("[[1], [2, 3]]", "[]"), ("[]", "[]")] {
            let is_values =
                |batch: &Result<Columns, _>| matches!(&batch.as_ref().unwrap()["a"], Column::Values(_));
            assert!(ways(one, other).iter().all(is_values), "{one} and {other}");
        }
    }

    #[test]
    fn integers_and_floats_in_one_column_are_floats() {
        let of = |lines: &[&str]| {
            let batch = batch(&FieldOptions::new(), lines).unwrap();
            batch.tensor::<f64>("a").unwrap().as_slice().to_vec()
        };
        assert_eq!(of(&[r#"{"a": 1}"#, r#"{"a": 2}"#, r#"{"a": 0.5}"#, r#"{"a": 3}"#]), [1.0, 2.0, 0.5, 3.0]);
        assert_eq!(of(&[r#"{"a": 0.5}"#, r#"{"a": 1}"#]), [0.5, 1.0]);
        assert_eq!(of(&[r#"{"a": [1, 2]}"#, r#"{"a": [0.5, 3]}"#]), [1.0, 2.0, 0.5, 3.0]);
        let (values, _) = padded(-1.0, &[r#"{"a": [1]}"#, r#"{"a": [0.5, 2]}"#]);
        assert_eq!(values.as_slice::<f64>().unwrap(), [1.0, -1.0, 0.5, 2.0]);
        // No dtype has the ranges of both.
        for lines in [["18446744073709551615", "0"], ["0.5", "18446744073709551615"]] {
            let lines = lines.map(|number| format!("{{\"a\": {number}}}"));
            assert!(batch(&FieldOptions::new(), &lines.each_ref().map(String::as_str)).is_err());
        }
    }

    /// Rows of two columns: `a` of single numbers and `b` of tensors, in this order or the other one.
    #[derive(Debug)]
    struct TestRows {
        names: [Arc<str>; 2],
        columns: [(Vec<usize>, Vec<f32>); 2],
        /// False if the numbers of `b` are not known to have one shape.
        is_even: bool,
    }

    impl TestRows {
        fn new(first: u8, is_even: bool) -> Self {
            let a = (0..4).map(|row| f32::from(first + row)).collect();
            let b = (0..8).map(|place| f32::from(first) + place as f32 / 10.0).collect();
            Self { names: ["a".into(), "b".into()], columns: [(vec![], a), (vec![2], b)], is_even }
        }

        fn reversed(mut self) -> Self {
            self.names.reverse();
            self.columns.reverse();
            self
        }
    }

    impl Rows for TestRows {
        fn names(&self) -> &[Arc<str>] {
            &self.names
        }

        fn value(&self, column: usize, row: usize) -> Result<Value, DataProblem> {
            let (shape, numbers) = &self.columns[column];
            let len = shape.iter().product::<usize>();
            let tensor = Tensor::from_slice(&numbers[row * len..(row + 1) * len], shape.clone()).unwrap();
            Ok(if shape.is_empty() { tensor.as_slice()[0].into() } else { tensor.into() })
        }

        fn numbers(&self, column: usize) -> Option<Numbers<'_>> {
            let (shape, numbers) = &self.columns[column];
            let bytes = bytemuck::cast_slice(numbers);
            (self.is_even || shape.is_empty()).then_some(Numbers { dtype: DType::F32, shape, bytes })
        }
    }

    /// Stacks rows, and the same rows as records of values.
    fn both(rows: &[(Arc<dyn Rows>, usize)]) -> [Columns; 2] {
        let mut stacks = [Record::stack(rows.len()), Record::stack(rows.len())];
        for (number, (source, row)) in rows.iter().enumerate() {
            let record = || Record::from_row(Arc::clone(source), *row);
            let values = |record: Record| Record { fields: Fields::Values(record.fields.into_values()) };
            // A stack may get both kinds of records.
            stacks[0].push(if number == 5 { values(record()) } else { record() }).unwrap();
            stacks[1].push(values(record())).unwrap();
        }
        stacks.map(|stack| stack.finish().unwrap())
    }

    #[test]
    fn rows_of_decoded_columns_are_stacked_like_records_of_values() {
        let sources: [Arc<dyn Rows>; 4] = [
            Arc::new(TestRows::new(0, true)),
            Arc::new(TestRows::new(10, true)),
            Arc::new(TestRows::new(20, false)),
            Arc::new(TestRows::new(30, true).reversed()),
        ];
        let orders: [&[(usize, usize)]; 5] = [
            &[(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)],
            &[(0, 3), (1, 0), (0, 2), (1, 1), (0, 1), (0, 1), (1, 3), (0, 0)],
            &[(0, 0), (0, 1), (2, 0), (0, 2), (2, 1), (2, 2), (2, 3)],
            &[(2, 1), (2, 2), (0, 0), (0, 1), (0, 2), (1, 1), (1, 2)],
            &[(0, 0), (0, 1), (3, 0), (3, 1), (0, 2), (3, 2)],
        ];
        for order in orders {
            let rows: Vec<_> =
                order.iter().map(|&(source, row)| (Arc::clone(&sources[source]), row)).collect();
            let [columns, stacked] = both(&rows);
            assert_eq!(columns, stacked, "{order:?}");
            assert_eq!(columns.tensor::<f32>("b").unwrap().shape(), [order.len(), 2]);
        }
    }

    #[test]
    fn decoded_rows_that_the_dataset_has_dropped_are_freed() {
        let mut stack = Record::stack(4);
        let old: Arc<dyn Rows> = Arc::new(TestRows::new(0, true));
        let is_freed = Arc::downgrade(&old);
        stack.push(Record::from_row(Arc::clone(&old), 0)).unwrap();
        stack.push(Record::from_row(old, 1)).unwrap();
        assert!(is_freed.upgrade().is_some(), "row 1 is not copied yet");
        stack.push(Record::from_row(Arc::new(TestRows::new(10, true)), 0)).unwrap();
        assert!(is_freed.upgrade().is_none());
        assert_eq!(stack.finish().unwrap().tensor::<f32>("a").unwrap().as_slice(), [0.0, 1.0, 10.0]);
    }

    #[test]
    fn a_row_of_another_shape_is_refused_when_it_is_pushed() {
        let mut wide = TestRows::new(0, true);
        wide.columns[1] = (vec![1, 2], wide.columns[1].1.clone());
        let mut stack = Record::stack(4);
        let rows: Arc<dyn Rows> = Arc::new(TestRows::new(0, true));
        stack.push(Record::from_row(Arc::clone(&rows), 0)).unwrap();
        stack.push(Record::from_row(rows, 1)).unwrap();
        let error = stack.push(Record::from_row(Arc::new(wide), 0)).unwrap_err();
        assert!(error.to_string().starts_with("field `b`: shape [1, 2] differs"), "{error}");
    }

    #[test]
    fn a_record_that_is_a_row_can_be_read_and_changed() {
        let rows: Arc<dyn Rows> = Arc::new(TestRows::new(7, true));
        let mut record = Record::from_row(rows, 2);
        assert_eq!((record.len(), record.get("a")), (2, Some(&Value::from(9.0f32))));
        let copy = record.clone();
        record.set("a", 1i64);
        assert_eq!(record.remove("a"), Some(Value::from(1i64)));
        assert_eq!(record.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
        assert!(record != copy && copy.get("b") == record.get("b"));
    }
}
