//! The JSON Schema of configs, made from the list of options and the types of `[dataset]`.

use loader_core::{LoaderOptions, OptionInfo, OptionKind};
use loader_data::{ImageFolderOptions, kind_schema, schema_generator};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

/// Returns the schema. Without `kind`, which another config may have, the keys of `[dataset]` must be those of one
/// kind.
pub(crate) fn schema() -> Value {
    // The defaults are of types that JSON has.
    let defaults = serde_json::to_value(LoaderOptions::DEFAULTS).unwrap_or_default();
    let options: Map<String, Value> = OptionInfo::ALL
        .iter()
        .map(|option| (option.name().to_owned(), schema_of(option, defaults.get(option.name()))))
        .collect();
    let mut generator = schema_generator();
    let images = ImageFolderOptions::json_schema(&mut generator);
    #[allow(unused_mut, reason = "there is one kind without the feature `formats`")]
    let mut kinds = vec![kind_schema(ImageFolderOptions::KIND, images, &Map::new())];
    #[cfg(feature = "formats")]
    kinds.push(generator.subschema_for::<loader_data::RecordConfig>().to_value());
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config of the `loader` command",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "extends": {
                "description": "Path of a config whose keys are used where this one does not have them, \
                                from the folder of this config",
                "type": "string",
            },
            "dataset": { "anyOf": kinds },
            "loader": { "type": "object", "additionalProperties": false, "properties": options },
        },
        "definitions": generator.take_definitions(true),
    })
}

fn schema_of(option: &OptionInfo, default: Option<&Value>) -> Value {
    let kind = option.kind();
    let mut schema = match kind {
        OptionKind::Switch => json!({ "type": "boolean" }),
        OptionKind::Number => json!({ "type": "integer", "minimum": 0 }),
        OptionKind::Bytes => number_or("integer", &with_unit(kind)),
        OptionKind::Seconds => number_or("number", &with_unit(kind)),
        OptionKind::NumWorkers => num_workers(),
        OptionKind::NumberOrAuto => number_or("integer", &json!({ "enum": ["auto"] })),
        OptionKind::Path | OptionKind::Address => json!({ "type": "string" }),
        OptionKind::Affinity => affinity(),
        OptionKind::Choice(names) => json!({ "enum": names }),
        // Any value.
        _ => json!({}),
    };
    let mut description = option.help().to_owned();
    if !option.bounds().is_empty() {
        description += &format!(". Bounds: {}", option.bounds());
    }
    if option.needs_workers() {
        description += ". Needs workers";
    }
    match (default, option.default_text()) {
        (Some(default), _) => schema["default"] = default.clone(),
        (None, Some(words)) => description += &format!(". Default: {words}"),
        (None, None) => {}
    }
    schema["description"] = description.into();
    schema
}

fn num_workers() -> Value {
    let count = json!({ "type": "integer", "minimum": 1 });
    json!({ "anyOf": [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "pattern": "^auto(:[0-9]+-[0-9]*)?(:freeze)?$" },
        {
            "type": "object",
            "additionalProperties": false,
            "required": ["auto"],
            "properties": { "auto": {
                "type": "object",
                "additionalProperties": false,
                "properties": { "min": count, "max": count, "freeze": { "type": "boolean" } },
            } },
        },
    ] })
}

fn affinity() -> Value {
    let set = json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" });
    json!({ "anyOf": [
        { "enum": ["inherit", "share", "spread", "pack"] },
        { "type": "array", "items": set, "minItems": 1 },
    ] })
}

fn number_or(number: &str, other: &Value) -> Value {
    json!({ "anyOf": [{ "type": number, "minimum": 0 }, other] })
}

/// Returns the schema of texts such as "2 GiB".
fn with_unit(kind: OptionKind) -> Value {
    json!({ "type": "string", "pattern": kind.text_pattern() })
}
