//! The escape of names and texts that come from files.

use std::fmt;

/// Returns `text` with control characters, line breaks and characters that change the direction of a text escaped. The
/// name of a file, a member or a field may have such characters, and a terminal that interprets escape sequences would
/// act on them.
pub fn printable(text: impl fmt::Display) -> String {
    let text = text.to_string();
    if text.chars().all(is_printable) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_printable(character) {
            escaped.push(character)
        } else {
            escaped.extend(character.escape_debug())
        }
    }
    escaped
}

/// True if [`printable`] leaves the character as it is.
pub fn is_printable(character: char) -> bool {
    // U+2028 and U+2029 are line breaks, and the others change the direction of the text that follows.
    !character.is_control()
        && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let text = "a\nb\t\u{1b}[2J\u{9b}2Jc \"d\" \\ é e\u{301} \u{202e}x\u{2028}";
        let escaped = "a\\nb\\t\\u{1b}[2J\\u{9b}2Jc \"d\" \\ é e\u{301} \\u{202e}x\\u{2028}";
        assert_eq!(printable(text), escaped);
    }
}
