//! Compares docs/configuration.md with the list of options.

use std::{env, fs};

use crate::options::{OptionInfo, OptionKind, listed};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
const HEAD: &str =
    "| key | type | default | bounds | environment variable | command line |\n|---|---|---|---|---|---|\n";

/// To update the document after a change of the list, run this test with `UPDATE_DOCS=1`.
#[test]
fn the_document_has_a_row_for_each_option_of_the_list() {
    let text = fs::read_to_string(FILE).unwrap();
    let (before, rest) = text.split_once(HEAD).expect("the document has a table with this head");
    let (table, after) = rest.split_once("\n\n").expect("an empty line follows the table");
    let expected: Vec<_> = OptionInfo::ALL.iter().map(row).collect();
    let expected = expected.join("\n");
    if table != expected && env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(FILE, format!("{before}{HEAD}{expected}\n\n{after}")).unwrap();
    }
    assert!(
        table == expected,
        "run this test with UPDATE_DOCS=1, or put this table into {FILE}:\n{HEAD}{expected}"
    );
}

#[test]
fn the_document_explains_each_option() {
    let text = fs::read_to_string(FILE).unwrap();
    for option in OptionInfo::ALL {
        let name = format!("`{}`", option.name());
        let is_about = |line: &str| {
            line.strip_prefix("- ")
                .and_then(|line| line.split_once(": "))
                .is_some_and(|(names, _)| names.contains(&name))
        };
        assert!(text.lines().any(is_about), "{FILE} has no item for {name}");
    }
}

fn row(option: &OptionInfo) -> String {
    let name = option.name();
    let kind = match option.kind() {
        OptionKind::Switch => "true or false".to_owned(),
        OptionKind::Number => "whole number".to_owned(),
        OptionKind::Bytes => "bytes, or a [size](#sizes-and-times)".to_owned(),
        OptionKind::Seconds => "seconds, or a [time](#sizes-and-times)".to_owned(),
        OptionKind::NumWorkers => "whole number, `\"auto\"` or `{ auto = { min = 1, max = 8 } }`".to_owned(),
        OptionKind::NumberOrAuto => "whole number or `\"auto\"`".to_owned(),
        OptionKind::Path => "path".to_owned(),
        OptionKind::Address => "IP address with a port".to_owned(),
        OptionKind::Affinity => {
            "`\"inherit\"`, `\"share\"`, `\"spread\"`, `\"pack\"` or sets of CPUs".to_owned()
        }
        OptionKind::Choice(names) => {
            listed(&names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>(), "or")
        }
    };
    let default = match (option.kind(), option.default_text()) {
        (_, None) => "none".to_owned(),
        (OptionKind::Choice(_) | OptionKind::Affinity, Some(name)) => format!("`\"{name}\"`"),
        (_, Some(text)) => text,
    };
    let mut bounds = option.bounds().to_owned();
    if option.needs_workers() {
        bounds += if bounds.is_empty() { "needs workers" } else { "; needs workers" };
    }
    // An empty cell is one space.
    let bounds = if bounds.is_empty() { " ".to_owned() } else { format!(" {bounds} ") };
    let flag = format!("--{}", option.flag());
    let usage = match option.kind() {
        OptionKind::Switch => format!("`{flag}`, `{flag}=false`"),
        OptionKind::NumWorkers => format!("`{flag} N`, `{flag} auto`, `{flag} auto:1-8`"),
        OptionKind::NumberOrAuto => format!("`{flag} N`, `{flag} auto`"),
        OptionKind::Path => format!("`{flag} FILE`"),
        OptionKind::Address => format!("`{flag} ADDRESS:PORT`"),
        OptionKind::Affinity => format!("`{flag} NAME`, `{flag} '0-3 4-7'`"),
        OptionKind::Choice(_) => format!("`{flag} NAME`"),
        kind => format!("`{flag} {}`", kind.value_name()),
    };
    format!("| `{name}` | {kind} | {default} |{bounds}| `{}` | {usage} |", option.variable())
}
