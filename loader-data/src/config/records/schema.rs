//! The JSON Schema of the datasets of records.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use super::{super::schema::kind_schema, RecordConfig};

impl JsonSchema for RecordConfig {
    fn schema_name() -> Cow<'static, str> {
        "Dataset".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        any_kind(generator, &Map::new())
    }
}

/// Returns the schema of a dataset of any kind that also has the keys of `more`.
pub(crate) fn any_kind(generator: &mut SchemaGenerator, more: &Map<String, Value>) -> Schema {
    let schemas = RecordConfig::schemas(generator);
    let kinds = RecordConfig::KINDS.iter().zip(schemas);
    let kinds: Vec<Value> = kinds.map(|(kind, keys)| kind_schema(kind, keys, more)).collect();
    json_schema!({ "anyOf": kinds })
}
