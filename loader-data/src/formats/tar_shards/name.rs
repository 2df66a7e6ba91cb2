//! How the name of a member says to which sample and field it belongs.
//!
//! The rules are those of the regular expressions in webdataset 1.0.2 (`tariterators.py`).

/// Splits the name of a member into the key of its sample and the field: at the first dot of the last
/// component. The directory is part of the key. Returns `None` if the name has no such dot.
pub(crate) fn key_and_field(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let component = last_component(name);
    let dot = component + name[component..].iter().position(|&byte| byte == b'.')?;
    // In webdataset's expression, what precedes the dot may be a slash: `a/.b` has the key `a/`. A dot in the
    // folder prevents that.
    let before = if dot > component { component } else { last_component(&name[..component.checked_sub(1)?]) };
    let is_key = !name[before..dot].contains(&b'.') && before < dot;
    is_key.then(|| (&name[..dot], &name[dot + 1..]))
}

/// True if the member is metadata of the archive, such as `__info__.json` in a folder `__meta__`, or
/// `__index__`.
pub(crate) fn is_metadata(name: &[u8]) -> bool {
    let slash = name.iter().position(|&byte| byte == b'/');
    let first = &name[..slash.unwrap_or(name.len())];
    // Without a folder, the two pairs of underscores may overlap.
    first.starts_with(b"__") && first.ends_with(b"__") && (first.len() >= 4 || slash.is_none())
}

/// Returns where the last component of a path starts.
fn last_component(path: &[u8]) -> usize {
    path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each name of up to 5 characters of `a./_`: what webdataset's expressions return. Written by
    /// `tests/formats/fixtures/tar/write.py`.
    const EXPECTED: &str = include_str!("../../../tests/formats/fixtures/tar/names.txt");

    #[test]
    fn names_are_split_as_webdataset_does() {
        let mut count = 0;
        for line in EXPECTED.lines() {
            let [name, key, field, skipped] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line:?} has not four columns")
            };
            let expected = (key != "-").then_some((key.as_bytes(), field.as_bytes()));
            assert_eq!(key_and_field(name.as_bytes()), expected, "{name}");
            assert_eq!(is_metadata(name.as_bytes()), skipped == "skipped", "{name}");
            count += 1;
        }
        assert!(count > 1000, "{count} names");
        assert_eq!(key_and_field(b"train/cat.v2/1.seg.png"), Some((&b"train/cat.v2/1"[..], &b"seg.png"[..])));
        assert_eq!(key_and_field(b""), None);
    }
}
