//! The JSON Schema of the section `[dataset]`, made from the types that serde reads.

use schemars::{Schema, SchemaGenerator, transform::RecursiveTransform};
use serde_json::{Map, Value, json};

/// Returns the schema of a section with the key `kind`, which is always `kind`, and the keys of `options` and
/// `more`. No key is required, because another config (`extends`) may have the rest.
pub fn kind_schema(kind: &str, options: Schema, more: &Map<String, Value>) -> Value {
    let options = options.to_value();
    let mut properties = Map::new();
    properties.insert("kind".to_owned(), json!({ "const": kind }));
    properties.extend(options["properties"].as_object().cloned().unwrap_or_default());
    properties.extend(more.clone());
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Returns a generator of schemas for editors: its descriptions are the first paragraphs of the documentation,
/// as text.
pub fn schema_generator() -> SchemaGenerator {
    let describe = RecursiveTransform(|schema: &mut Schema| {
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = plain(description);
        }
        remove_null(schema);
    });
    schemars::generate::SchemaSettings::draft07().with_transform(describe).into_generator()
}

/// Removes null from the values, which TOML does not have.
fn remove_null(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [name] = &types[..] {
            let name = name.clone();
            schema.insert("type".to_owned(), name);
        }
    }
    if let Some(Value::Array(types)) = schema.get_mut("anyOf") {
        types.retain(|other| other["type"] != "null");
        if types.len() == 1 {
            let only = schema.remove("anyOf");
            schema.insert("allOf".to_owned(), only.unwrap_or_default());
        }
    }
}

/// Returns the first paragraph without its links.
fn plain(documentation: &str) -> String {
    let paragraph = documentation.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let mut text = String::new();
    let mut rest = paragraph.as_str();
    while let Some((before, link)) = rest.split_once("[`") {
        text += before;
        let Some((name, after)) = link.split_once("`]") else { break };
        text += &format!("`{name}`");
        rest = after;
        if let Some((_, after)) = rest.strip_prefix('(').and_then(|target| target.split_once(')')) {
            rest = after;
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_links() {
        assert_eq!(plain("Sets [`a`](b::c)\nand [`d::E`].\n\n# Examples"), "Sets `a` and `d::E`.");
    }

    #[cfg(feature = "formats")]
    /// Serde lists the keys of a kind in its error for an unknown key.
    #[test]
    fn the_schema_has_the_keys_that_serde_knows() {
        let mut generator = schema_generator();
        for (kind, schema) in
            crate::RecordConfig::KINDS.iter().zip(crate::RecordConfig::schemas(&mut generator))
        {
            let schema = kind_schema(kind, schema, &Map::new());
            let mut keys: Vec<&str> =
                schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            let required = match *kind {
                "audio-folder" => json!({"path": "x", "sample_rate": 16000}),
                "cached" => json!({"folder": "x", "dataset": {"kind": "csv"}}),
                "mix" => json!({"parts": []}),
                "packed" => json!({"window": 8, "dataset": {"kind": "csv"}}),
                _ => json!({}),
            };
            let mut config = required;
            (config["kind"], config["xyz"]) = ((*kind).into(), 1.into());
            let message = serde_json::from_value::<crate::RecordConfig>(config).unwrap_err().to_string();
            let (_, known) = message.split_once("expected one of `").expect(&message);
            let mut known: Vec<&str> = known.split('`').step_by(2).filter(|key| !key.is_empty()).collect();
            known.push("kind");
            known.sort_unstable();
            keys.sort_unstable();
            assert_eq!(keys, known, "{kind}");
        }
    }
}
