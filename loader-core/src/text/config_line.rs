//! Lines of a config in errors.

use std::fmt;

use crate::text::printable::printable;

/// Returns the line that sets `option` of field `field` to `value`, such as `pad = { tokens = 0 }`, and its place.
pub fn config_line(option: &str, field: &str, value: impl fmt::Display) -> String {
    let is_bare = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let key = if !field.is_empty() && field.chars().all(is_bare) {
        field.to_owned()
    } else {
        format!("\"{}\"", printable(field.replace('\\', "\\\\").replace('"', "\\\"")))
    };
    format!("`{option} = {{ {key} = {value} }}` in the section `[dataset]` of a config")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_if_toml_needs_that() {
        let key = |field| config_line("fill", field, 0);
        assert_eq!(key("a-1"), "`fill = { a-1 = 0 }` in the section `[dataset]` of a config");
        assert!(key("ü \"x\"").starts_with("`fill = { \"ü \\\"x\\\"\" = 0 }`"));
        assert!(key("").starts_with("`fill = { \"\" = 0 }`"));
    }
}
