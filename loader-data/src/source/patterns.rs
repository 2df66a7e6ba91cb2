//! Patterns for file names: braces as in WebDataset, and globs.

use crate::error::DataProblem;

/// Maximum number of names that the braces of one pattern may stand for.
const MAX_NAMES: usize = 1_000_000;

/// Expands braces: `{000..099}` counts, with leading zeros if the first number has them, and `{train,test}`
/// lists.
pub(super) fn expand_braces(pattern: &str) -> Result<Vec<String>, DataProblem> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}').map(|close| open + close);
        let close = close.ok_or_else(|| DataProblem::Pattern("`{` has no `}`".to_owned()))?;
        let choices = choices(&rest[open + 1..close])?;
        if names.len().saturating_mul(choices.len()) > MAX_NAMES {
            return Err(DataProblem::Pattern(format!("the braces stand for more than {MAX_NAMES} names")));
        }
        let before = &rest[..open];
        names = names
            .iter()
            .flat_map(|name| choices.iter().map(move |choice| format!("{name}{before}{choice}")))
            .collect();
        rest = &rest[close + 1..];
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Returns what the inside of a pair of braces stands for.
fn choices(inside: &str) -> Result<Vec<String>, DataProblem> {
    let Some((first, last)) = inside.split_once("..") else {
        return Ok(inside.split(',').map(str::to_owned).collect());
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| DataProblem::Pattern(format!("`{text}` in `{{{inside}}}` is not a number")))
    };
    let (from, to) = (number(first)?, number(last)?);
    if to < from || to - from >= MAX_NAMES as u64 {
        return Err(DataProblem::Pattern(format!("`{{{inside}}}` has no numbers, or more than {MAX_NAMES}")));
    }
    let width = if first.starts_with('0') { first.len() } else { 0 };
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

/// True if `name` has a character that a glob gives a meaning to.
pub(crate) fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_count_and_list() {
        let names = expand_braces("{train,test}-{08..10}.tar").unwrap();
        let expected =
            ["train-08.tar", "train-09.tar", "train-10.tar", "test-08.tar", "test-09.tar", "test-10.tar"];
        assert_eq!(names, expected);
        assert_eq!(expand_braces("a-{8..10}").unwrap(), ["a-8", "a-9", "a-10"]);
        assert_eq!(expand_braces("plain").unwrap(), ["plain"]);
        for invalid in ["{1..", "{2..1}", "{a..b}", "{0..999999}{0..9}"] {
            assert!(matches!(expand_braces(invalid), Err(DataProblem::Pattern(_))), "{invalid}");
        }
    }
}
