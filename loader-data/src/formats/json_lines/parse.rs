//! Parses lines into rows.

use std::any::TypeId;

use loader_core::Phase;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::{
    error::DataProblem,
    record::{FieldOptions, Record},
};

/// Name of the format in errors.
const FORMAT: &str = "JSON lines";

/// Parses the bytes of a line as a row.
pub(super) fn parse<R: DeserializeOwned + 'static>(
    line: &[u8],
    fields: &FieldOptions,
) -> Result<R, DataProblem> {
    if fields.is_default() {
        return parse_as(line);
    }
    fields.apply(parse_as(line)?)?.into_row()
}

fn parse_as<R: DeserializeOwned + 'static>(line: &[u8]) -> Result<R, DataProblem> {
    Phase::Decode.measure(|| serde_json::from_slice(line)).map_err(|error| {
        let text = error.to_string();
        // serde_json gets a single line, so it always reports line 1.
        let reason = text.replace(" at line 1 column ", " at column ");
        let start = line.trim_ascii_start().first();
        let is_object = start == Some(&b'{');
        let is_record = TypeId::of::<R>() == TypeId::of::<Record>();
        match error.classify() {
            Category::Data if is_object && !is_record => DataProblem::Record(reason),
            // All rows of a file may be in one array, on one line or on many. A row type may be an array.
            _ if is_record && start == Some(&b'[') => {
                let reason = "the line begins an array; write each object of the array on a line of its own, for example \
                              with `jq -c '.[]'`";
                DataProblem::Malformed { format: FORMAT, reason: reason.to_owned() }
            }
            Category::Syntax if not_a_number(line, error.column()).is_some() => {
                let name = not_a_number(line, error.column()).unwrap_or_default();
                let reason =
                    format!("`{name}` is not JSON (at column {}); write null in its place", error.column());
                DataProblem::Malformed { format: FORMAT, reason }
            }
            Category::Eof if is_object => {
                let reason = format!("{reason}; an object must end on the line on which it begins");
                DataProblem::Malformed { format: FORMAT, reason }
            }
            Category::Data if !is_object => {
                let reason = format!("the line is not an object: {reason}");
                DataProblem::Malformed { format: FORMAT, reason }
            }
            Category::Data | Category::Syntax | Category::Eof | Category::Io => {
                DataProblem::Malformed { format: FORMAT, reason }
            }
        }
    })
}

/// Returns what Python's `json` writes for a number that is not finite, if `line` has it at `column`.
fn not_a_number(line: &[u8], column: usize) -> Option<&'static str> {
    let rest = line.get(column.checked_sub(1)?..)?;
    ["NaN", "Infinity"].into_iter().find(|name| rest.starts_with(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Row {
        n: u8,
    }

    #[test]
    fn a_float_with_all_its_digits_is_read_exactly() {
        let row: Vec<f64> =
            parse(b"[0.058747562183483204, 5e-324, 1.7976931348623157e308]", &FieldOptions::new()).unwrap();
        assert_eq!(row, [0.058747562183483204, 5e-324, f64::MAX]);
    }

    #[test]
    fn an_invalid_row_is_a_typed_error() {
        let all = FieldOptions::new();
        let problem = |line: &[u8]| parse::<Row>(line, &all).map(|row| row.n).unwrap_err();
        let malformed: [&[u8]; 12] = [
            b"5",
            b"null",
            b"\"n\"",
            b"[300]",
            b"{",
            b"{\"n\"",
            b"{\"n\": 1",
            b"{\"n\": 1}}",
            b"{\"n\": NaN}",
            b"{\"n\": \"\xff\"}",
            b"\0",
            b"{'n': 1}",
        ];
        for line in malformed {
            let (text, problem) = (String::from_utf8_lossy(line), problem(line));
            assert!(matches!(problem, DataProblem::Malformed { .. }), "{text}: {problem:?}");
            let record = parse::<Record>(line, &all).unwrap_err();
            assert!(matches!(record, DataProblem::Malformed { .. }), "{text} as a record: {record:?}");
        }
        for line in [r#"{"m": 1}"#, r#"{"n": null}"#, r#"{"n": 300}"#, r#"{"n": "1"}"#, r#"{"n": 1, "n": 2}"#]
        {
            let problem = problem(line.as_bytes());
            assert!(matches!(problem, DataProblem::Record(_)), "{line}: {problem:?}");
        }
        assert_eq!(
            problem(b"{\"n\": 1,}").to_string(),
            "is not valid JSON lines: trailing comma at column 9"
        );
        for (line, expected) in
            [("[", "the line begins an array"), ("[{\"n\": 1}]", "for example with `jq -c '.[]'`")]
        {
            let error = parse::<Record>(line.as_bytes(), &all).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        for (line, expected) in [
            ("{\"n\": NaN}", "`NaN` is not JSON (at column 7); write null in its place"),
            ("{\"n\": -Infinity}", "`Infinity` is not JSON (at column 8)"),
        ] {
            let error = parse::<Record>(line.as_bytes(), &all).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(problem(b"{").to_string().ends_with("an object must end on the line on which it begins"));
        // Nested so deep that a parser without a limit would overflow its stack.
        let deep = [b"{\"n\": ".as_slice(), &b"[".repeat(1 << 20)].concat();
        assert!(matches!(parse::<Record>(&deep, &all), Err(DataProblem::Malformed { .. })));
        assert!(parse::<(u8, String)>(b"[1, \"a\"]", &all).is_ok(), "a row type that is an array");
    }

    #[test]
    fn fields_are_selected_for_a_row_type_too() {
        let fields = FieldOptions::new().select(["n"]);
        assert_eq!(parse::<Row>(br#"{"n": 1, "m": 2}"#, &fields).unwrap().n, 1);
        let missing = parse::<Row>(br#"{"m": 2}"#, &fields).unwrap_err();
        assert!(matches!(missing, DataProblem::MissingField { .. }), "{missing:?}");
        assert_eq!(parse::<Record>(br#"{"n": 1, "m": 2}"#, &fields).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_row_or_an_error(line in proptest::collection::vec(any::<u8>(), 0..40)) {
            drop(parse::<Record>(&line, &FieldOptions::new()));
            drop(parse::<Row>(&line, &FieldOptions::new().select(["n"])));
        }
    }
}
