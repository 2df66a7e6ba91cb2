//! Lines of text.

mod dataset;
mod options;
mod records;

use crate::error::DataProblem;

pub use dataset::{TextLines, TextLinesStream};
pub use options::TextLinesOptions;
pub use records::{TextRecords, TextRecordsStream};

/// Extensions of the files that a folder stands for.
pub(crate) const EXTENSIONS: [&str; 1] = [".txt"];

/// The field of a record.
pub(crate) const FIELD: &str = "text";

/// Returns the text of a line without its line break.
fn text(line: &[u8]) -> Result<String, DataProblem> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = str::from_utf8(line).map_err(|error| {
        let reason = format!("byte {} of the line is not UTF-8; convert the file", error.valid_up_to());
        DataProblem::Malformed { format: "text", reason }
    })?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_loses_its_line_break_only() {
        for (line, expected) in
            [("", ""), ("\n", ""), ("\r\n", ""), (" a \n", " a "), ("a\r\r\n", "a\r"), ("é", "é")]
        {
            assert_eq!(text(line.as_bytes()).unwrap(), expected);
        }
        let error = text(b"ab\xff\n").unwrap_err().to_string();
        assert_eq!(error, "is not valid text: byte 2 of the line is not UTF-8; convert the file");
    }
}
