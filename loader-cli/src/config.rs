//! `loader config`: prints the settings of a run with the origin of each value, or the JSON Schema of
//! configs.

use std::io::{self, Write};

use loader_core::OptionInfo;
use loader_data::DatasetConfig;
use serde_json::{Map, Value};

use crate::{
    arguments::ConfigArguments,
    events::json_line,
    schema,
    settings::{self, Target},
    stop::Stop,
};

pub(crate) fn config(arguments: &ConfigArguments) -> Result<(), Stop> {
    let text = match &arguments.print {
        Some(path) => {
            let mut target = settings::read(path, &arguments.loader)?;
            target.apply(&arguments.images)?;
            let dataset = dataset_lines(&target, arguments)?;
            let loader = loader_lines(&target)?;
            format!("[dataset]\n{}\n[loader]\n{}", aligned(&dataset), aligned(&loader))
        }
        None => format!("{:#}\n", schema::schema()),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// A line of a config without its comment, and the comment.
type Line = (String, String);

fn dataset_lines(target: &Target, arguments: &ConfigArguments) -> Result<Vec<Line>, Stop> {
    let overridden = arguments.images.names();
    let origin = |key: &str| match &target.config {
        _ if overridden.contains(&key.split('.').next().unwrap_or_default()) => "command line".to_owned(),
        Some(config) => match config.location(&format!("dataset.{key}")) {
            Some(location) => location.to_string(),
            None => "default".to_owned(),
        },
        None if ["kind", "path"].contains(&key) => "command line".to_owned(),
        None => "default".to_owned(),
    };
    let dataset = json(&target.dataset.clone().resolved()?)?;
    let mut values = Vec::new();
    add_values(&dataset, &[], &mut values);
    values.sort_by_key(|(path, _)| path != &["kind"]);
    Ok(values.iter().map(|(path, value)| (setting(path, value), origin(&path.join(".")))).collect())
}

/// Returns the lines of a section `[dataset]` for the files of a dataset.
pub(crate) fn dataset_section(dataset: &DatasetConfig) -> Result<String, Stop> {
    let values = json(dataset)?;
    let keys = ["kind", "path", "config", "split"].into_iter();
    let lines =
        keys.filter_map(|key| Some(setting(&[key], values.get(key).filter(|value| !value.is_null())?)));
    Ok(format!("[dataset]\n{}", lines.collect::<Vec<_>>().join("\n")))
}

fn loader_lines(target: &Target) -> Result<Vec<Line>, Stop> {
    let options = target.options.options();
    // `resolved` alone would replace `num_workers = "auto"` by its bounds.
    let values = json(&options.clone().over(options.clone().resolved()))?;
    let line = |option: &OptionInfo| {
        let name = option.name();
        let origin = target.options.origin(option).map(ToString::to_string);
        match (values.get(name), option.default_text()) {
            (Some(value), _) => (setting(&[name], value), origin.unwrap_or("default".to_owned())),
            (None, None) => (format!("# {name}"), "not set".to_owned()),
            (None, Some(_)) if option.has_default_value() => {
                (format!("# {name}"), "no effect without workers".to_owned())
            }
            (None, Some(words)) => (format!("# {name}"), format!("default: {words}")),
        }
    };
    Ok(OptionInfo::ALL.iter().map(line).collect())
}

fn json(value: &impl serde::Serialize) -> Result<Map<String, Value>, Stop> {
    match serde_json::to_value(value).map_err(io::Error::from)? {
        Value::Object(keys) => Ok(keys),
        _ => unreachable!("the sections are structs"),
    }
}

/// Adds the values in `table` that are not tables, each with the keys that lead to it.
fn add_values<'a>(
    table: &'a Map<String, Value>,
    outer: &[&'a str],
    values: &mut Vec<(Vec<&'a str>, &'a Value)>,
) {
    for (key, value) in table {
        let path = [outer, &[key]].concat();
        match value {
            // TOML has no null: the key is left out.
            Value::Null => {}
            Value::Object(table) if !table.is_empty() => add_values(table, &path, values),
            value => values.push((path, value)),
        }
    }
}

/// Writes a key and its value as TOML.
fn setting(path: &[&str], value: &Value) -> String {
    let keys: Vec<String> = path.iter().map(|key| toml_key(key)).collect();
    format!("{} = {}", keys.join("."), toml(value))
}

/// Writes a value as TOML in one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(table) => {
            let keys = table.iter().filter(|(_, value)| !value.is_null());
            let keys: Vec<String> = keys.map(|(key, value)| setting(&[key], value)).collect();
            if keys.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", keys.join(", ")) }
        }
        // Numbers, true and false, and strings are written as in JSON.
        value => json_line(value),
    }
}

fn toml_key(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { json_line(&key) }
}

/// Writes the comments of all lines in one column.
fn aligned(lines: &[Line]) -> String {
    const MAX_WIDTH: usize = 48;
    let widths = lines.iter().map(|(line, _)| line.chars().count());
    let width = widths.filter(|width| *width <= MAX_WIDTH).max().unwrap_or(0);
    lines.iter().map(|(line, comment)| format!("{line:width$}  # {comment}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_toml() {
        let value = json!({
            "path": ["a\"b", "c"],
            "parts": [{"weight": 0.5, "store": null}],
            "rename": {},
            "images": {"a b": {"size": 4, "crop": null}, "c": {"exif": true}},
        });
        let mut values = Vec::new();
        add_values(value.as_object().unwrap(), &[], &mut values);
        let text: String = values.iter().map(|(path, value)| setting(path, value) + "\n").collect();
        let expected = "images.\"a b\".size = 4\nimages.c.exif = true\nparts = [{ weight = 0.5 }]\n\
                        path = [\"a\\\"b\", \"c\"]\nrename = {}\n";
        assert_eq!(text, expected);
    }
}
