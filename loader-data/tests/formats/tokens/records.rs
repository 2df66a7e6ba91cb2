//! Tokens as records, opened from options.

use loader_core::{AnyTensor, DType, DataLoader, Dataset, Tensor};
use loader_data::{Column, DataError, TokenRecords, TokensOptions, Value};
use serde_json::json;

use super::{all, fixture, windows, written};
use crate::everywhere::same_everywhere;

fn open(options: serde_json::Value) -> Result<TokenRecords, DataError> {
    serde_json::from_value::<TokensOptions>(options).unwrap().open()
}

#[test]
fn a_record_has_a_window() {
    let records = open(
        json!({"path": fixture("u16.bin"), "dtype": "uint16", "window": 65, "stride": 16, "sample_dtype": "uint32"}),
    );
    let records = records.unwrap();
    for (record, expected) in all(&records).iter().zip(windows(&written(1000), 65, 16)) {
        let expected: Vec<_> = expected.iter().map(|&token| token as u32).collect();
        let tensor = AnyTensor::from(Tensor::from_vec(expected, [65]).unwrap());
        assert_eq!(record.get("tokens"), Some(&Value::Tensor(tensor)));
        assert_eq!(record.len(), 1);
    }
    let batches = same_everywhere(|workers| {
        let loader = DataLoader::builder(records.clone()).batch_size(3).shuffle(true);
        loader.num_workers(workers).build().unwrap()
    });
    assert_eq!(batches[0].tensor::<u32>("tokens").unwrap().shape(), [3, 65]);
}

#[test]
fn a_record_has_positions_if_documents_have_an_end() {
    let options = json!({
        "path": [fixture("corpus"), fixture("multimodal")], "format": "megatron", "window": 9, "stride": 9,
        "end_of_document": written(5)[4], "vocabulary": 50_257,
    });
    let loader = DataLoader::builder(open(options).unwrap()).batch_size(2).build().unwrap();
    let batch = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.tensor::<i64>("positions").unwrap().row(0), [0, 1, 2, 3, 4, 0, 1, 2, 3]);
    assert_eq!(batch.tensor::<i64>("segments").unwrap().row(0), [1, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(batch.tensor::<i64>("tokens").unwrap().row(1), &written(18)[9..]);
}

#[test]
fn documents_are_padded() {
    let options = json!({
        "path": fixture("corpus"), "format": "megatron", "documents": true, "max_tokens": 8, "pad": 7,
        "sample_dtype": "int32",
    });
    let records = open(options).unwrap();
    assert_eq!(records.len(), 40);
    let loader = DataLoader::builder(records).batch_size(4).build().unwrap();
    let batch = loader.iter().unwrap().nth(1).unwrap().unwrap();
    let Column::Padded { values, lengths } = &batch["tokens"] else { panic!("{batch:?}") };
    assert_eq!(
        (values.dtype(), values.shape(), lengths.as_slice()),
        (DType::I32, [4, 8].as_slice(), [5, 6, 8, 0].as_slice())
    );
    assert_eq!(values.as_slice::<i32>().unwrap()[24..], [7; 8]);
}

#[test]
fn invalid_options_are_typed_errors() {
    let error = open(json!({"path": fixture("u16.bin"), "window": 9})).unwrap_err();
    assert!(error.to_string().contains("option `dtype`: raw files have no header"), "{error}");
    let error = open(json!({"path": fixture("u16.bin"), "dtype": "float32", "window": 9})).unwrap_err();
    assert!(error.to_string().contains("tokens of type float32"), "{error}");
}
