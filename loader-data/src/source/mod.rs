//! Where the bytes of a dataset lie: paths, patterns, open files.

mod blob;
mod files;
mod patterns;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize};

pub(crate) use blob::{Blob, BlobReader};
pub(crate) use files::{DataFile, Files};

/// A path of the local file system, or a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Location {
    // Not `PathBuf`: serde refuses paths that are not Unicode.
    Path(OsString),
    Url(String),
}

impl Location {
    /// Takes `text` as a URL if it begins with a scheme such as `s3://`. `file://` is a path.
    pub(crate) fn new(text: impl AsRef<Path>) -> Self {
        let path = text.as_ref();
        match path.to_str().and_then(|text| text.split_once("://").map(|(scheme, rest)| (text, scheme, rest)))
        {
            Some((_, "file", rest)) => Self::Path(rest.into()),
            Some((text, scheme, _)) if !scheme.is_empty() && scheme.bytes().all(is_scheme_byte) => {
                Self::Url(text.to_owned())
            }
            _ => Self::Path(path.as_os_str().to_owned()),
        }
    }

    /// The last component of the path.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Self::Path(path) => {
                Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
            Self::Url(url) => url.rsplit('/').next().unwrap_or_default().to_owned(),
        }
    }
}

/// Deserialises the patterns of an options struct: one, or a list of them.
#[cfg(any(feature = "json-lines", feature = "parquet", feature = "tar", feature = "tokens"))]
pub(crate) fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Patterns {
        One(PathBuf),
        Many(Vec<PathBuf>),
    }

    Ok(match Patterns::deserialize(deserializer)? {
        Patterns::One(pattern) => vec![pattern],
        Patterns::Many(patterns) => patterns,
    })
}

fn is_scheme_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::Path(path.into_os_string())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "`{}`", path.display()),
            // A user name and a password before the host are not shown.
            Self::Url(url) => match url.split_once("://") {
                Some((scheme, rest)) => {
                    let host_end = rest.find('/').unwrap_or(rest.len());
                    let host_start = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
                    write!(f, "`{scheme}://{}`", &rest[host_start..])
                }
                None => write!(f, "`{url}`"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_makes_a_url_and_credentials_are_not_shown() {
        assert_eq!(Location::new("data/a.jsonl"), Location::Path("data/a.jsonl".into()));
        assert_eq!(Location::new("file:///data/a"), Location::Path("/data/a".into()));
        let url = Location::new("https://me:secret@host/a@b/c.tar");
        assert_eq!(url.to_string(), "`https://host/a@b/c.tar`");
        assert_eq!(url.file_name(), "c.tar");
    }
}
