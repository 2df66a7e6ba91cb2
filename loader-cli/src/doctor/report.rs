//! The results of the checks, as lines of text or as JSON.

use std::fmt;

use loader_core::internal::printable;
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Nothing to do.
    Ok,
    /// The user may want to know it.
    Note,
    /// Loading works, but is slower or may fail later.
    Warning,
    /// Loading does not work.
    Error,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// The result of a check. Its `Display` is one line.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    status: Status,
    found: String,
    /// What it means for the user.
    meaning: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    pub(super) fn new(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self { name, status, found: found.into(), meaning: meaning.into(), advice: None }
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, status, found, meaning, advice } = self;
        let parts = [Some(found), Some(meaning).filter(|meaning| !meaning.is_empty()), advice.as_ref()];
        let parts: Vec<_> =
            parts.into_iter().flatten().map(|part| printable(part.replace('\n', " "))).collect();
        write!(f, "{status:<7} {name}: {}", parts.join("; "))
    }
}

/// The results of all checks.
#[derive(Debug, Default)]
pub(super) struct Report {
    checks: Vec<Check>,
}

impl Report {
    pub(super) fn add(&mut self, check: Check) {
        self.checks.push(check);
    }

    pub(super) fn extend(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.checks.extend(checks);
    }

    pub(super) fn count(&self, status: Status) -> u64 {
        self.checks.iter().filter(|check| check.status == status).count() as u64
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 3)?;
        report.serialize_field("checks", &self.checks)?;
        report.serialize_field("errors", &self.count(Status::Error))?;
        report.serialize_field("warnings", &self.count(Status::Warning))?;
        report.end()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            writeln!(f, "{check}")?;
        }
        let number = |count, name| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        let (errors, warnings) = (self.count(Status::Error), self.count(Status::Warning));
        let checks = self.checks.len() as u64;
        write!(f, "{}: {}, {}", number(checks, "check"), number(errors, "error"), number(warnings, "warning"))
    }
}

/// Writes a number of bytes with a unit.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|&(_, unit)| bytes >= unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line() {
        let mut report = Report::default();
        report.add(Check::new("kernel", Status::Ok, "Linux", ""));
        report.add(Check::new("files", Status::Error, "a\nb", "it fails").advice("do this"));
        let text =
            "ok      kernel: Linux\nerror   files: a b; it fails; do this\n2 checks: 1 error, 0 warnings";
        assert_eq!(report.to_string(), text);
        let json = r#"{"checks":[{"name":"kernel","status":"ok","found":"Linux","meaning":""},{"name":"files","status":"error","found":"a\nb","meaning":"it fails","advice":"do this"}],"errors":1,"warnings":0}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), json);
    }

    #[test]
    fn bytes_have_a_unit() {
        let texts = [0, 1023, 1024, 1 << 20, 3 << 29].map(bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB"]);
    }
}
