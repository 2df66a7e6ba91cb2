//! URLs.

use object_store::path::Path;

use crate::error::DataProblem;

/// The kinds of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    S3,
    Google,
    Azure,
    Http,
}

/// A URL, split into a store and the key of an object in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    /// The URL up to the key, such as `s3://bucket`. For an HTTP server it is the whole URL.
    pub(super) root: String,
    /// The key, without escapes. Empty for an HTTP server.
    pub(super) key: String,
}

impl Address {
    /// Splits `url`. What follows the bucket is the key as it is: `%`, `?` and `#` have no special meaning
    /// there, other than in the URL of an HTTP server.
    pub(super) fn parse(url: &str) -> Result<Self, DataProblem> {
        let (name, rest) = url.split_once("://").unwrap_or((url, ""));
        let scheme = match name {
            "s3" | "s3a" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" | "abfs" | "abfss" => Scheme::Azure,
            "http" | "https" => Scheme::Http,
            _ => {
                let problem =
                    format!("URLs that begin with `{name}://`; use s3, gs, az, abfss, https or http");
                return Err(DataProblem::Unsupported(problem));
            }
        };
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        if scheme != Scheme::Azure && host.contains('@') {
            let problem = "a user name or password in a URL; use the standard locations of credentials";
            return Err(DataProblem::Unsupported(problem.to_owned()));
        }
        if host.is_empty() {
            return Err(DataProblem::Pattern("the URL names no bucket or server".to_owned()));
        }
        if scheme == Scheme::Http {
            return Ok(Self { scheme, root: url.to_owned(), key: String::new() });
        }
        Ok(Self { scheme, root: format!("{name}://{host}"), key: key.to_owned() })
    }

    /// The key in the form that object_store takes.
    pub(super) fn path(&self) -> Result<Path, DataProblem> {
        Path::parse(&self.key).map_err(|error| DataProblem::Pattern(error.to_string()))
    }

    /// The URL of the object with another key in the same store.
    pub(super) fn url_of(&self, key: &str) -> String {
        format!("{}/{key}", self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_at_the_bucket() {
        let address = Address::parse("s3://bucket/a b/100%?#.tar").unwrap();
        assert_eq!((address.root.as_str(), address.key.as_str()), ("s3://bucket", "a b/100%?#.tar"));
        assert_eq!(address.path().unwrap().as_ref(), "a b/100%?#.tar");
        assert_eq!(address.url_of("c.tar"), "s3://bucket/c.tar");
        let address = Address::parse("abfss://container@account.dfs.core.windows.net/a").unwrap();
        assert_eq!(address.root, "abfss://container@account.dfs.core.windows.net");
        let address = Address::parse("https://host/refs%2Fmain/a?id=5").unwrap();
        assert_eq!((address.root.as_str(), address.key.as_str()), ("https://host/refs%2Fmain/a?id=5", ""));
    }

    #[test]
    fn what_is_not_supported_is_said() {
        for url in ["ftp://host/a", "https://me:secret@host/a", "s3://key:secret@bucket/a"] {
            let problem = Address::parse(url).unwrap_err();
            assert!(matches!(problem, DataProblem::Unsupported(_)), "{problem}");
            assert!(!problem.to_string().contains("secret"));
        }
        assert!(matches!(Address::parse("s3:///a"), Err(DataProblem::Pattern(_))));
        let double = Address::parse("s3://bucket/a//b").unwrap();
        assert!(matches!(double.path(), Err(DataProblem::Pattern(_))));
    }
}
