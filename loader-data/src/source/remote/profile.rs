//! The profiles of Amazon's tools: `~/.aws/credentials` and `~/.aws/config`.

use std::{env, io, path::PathBuf};

use loader_core::internal::whole_file;
use object_store::aws::AmazonS3Builder;

use crate::error::DataProblem;

/// Maximum number of bytes of a file with profiles.
const MAX_BYTES: u64 = 1 << 20;

/// The keys and the region of a profile.
pub(super) struct Profile {
    key_id: String,
    secret: String,
    token: Option<String>,
    region: Option<String>,
}

impl Profile {
    /// Gives the keys to `builder`, and the region if neither the options nor the environment name one.
    pub(super) fn apply(self, mut builder: AmazonS3Builder, take_region: bool) -> AmazonS3Builder {
        builder = builder.with_access_key_id(self.key_id).with_secret_access_key(self.secret);
        if let Some(token) = self.token {
            builder = builder.with_token(token);
        }
        let in_environment =
            ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().any(|name| env::var_os(name).is_some());
        match self.region {
            Some(region) if take_region && !in_environment => builder.with_region(region),
            _ => builder,
        }
    }
}

/// Reads the profile that `AWS_PROFILE` names, otherwise the profile `default`. Returns `None` if
/// `AWS_PROFILE` is not set and there is no such profile, or it has no keys.
pub(super) fn read() -> Result<Option<Profile>, DataProblem> {
    let named = env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
    let name = named.as_deref().unwrap_or("default");
    let credentials = text("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
    let config = text("AWS_CONFIG_FILE", "config")?;
    let profile = parse(name, &credentials, &config);
    if profile.is_none() && named.is_some() {
        return Err(DataProblem::Store(format!(
            "the profile `{name}` has no `aws_access_key_id` and `aws_secret_access_key`; profiles that log in in \
             another way (SSO, roles, processes) are not supported: export the keys as environment variables"
        )));
    }
    Ok(profile)
}

/// Reads the file that the environment variable names, otherwise `~/.aws/name`. A file that does not exist is
/// empty.
fn text(variable: &str, name: &str) -> Result<String, DataProblem> {
    let path = match (env::var_os(variable), env::var_os("HOME")) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(home)) => PathBuf::from(home).join(".aws").join(name),
        (None, None) => return Ok(String::new()),
    };
    match whole_file::read_text(&path, MAX_BYTES) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        Err(error) => Err(DataProblem::Store(format!("{} cannot be read: {error}", path.display()))),
        Ok(text) => Ok(text),
    }
}

fn parse(name: &str, credentials: &str, config: &str) -> Option<Profile> {
    let in_config = if name == "default" { name.to_owned() } else { format!("profile {name}") };
    let value = |key| find(credentials, name, key).or_else(|| find(config, &in_config, key));
    Some(Profile {
        key_id: value("aws_access_key_id")?,
        secret: value("aws_secret_access_key")?,
        token: value("aws_session_token"),
        region: value("region"),
    })
}

/// Returns the value of `key` in a section of an INI file.
fn find(text: &str, section: &str, key: &str) -> Option<String> {
    let is_header = |line: &str| line.starts_with('[');
    let lines = text.lines().map(str::trim);
    lines
        .skip_while(|line| {
            let inside = line.strip_prefix('[').and_then(|rest| rest.split(']').next());
            inside.is_none_or(|inside| inside.trim() != section)
        })
        .skip(1)
        .take_while(|line| !is_header(line))
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_from_both_files() {
        let credentials = "# comment\n[other]\naws_access_key_id=OTHER\n[default]\naws_access_key_id = ID\n\
            ; aws_secret_access_key = no\naws_secret_access_key = se=cret \n\n[third]\naws_session_token = no\n";
        let config = "[default]\nregion = eu-west-1\n[profile other]\naws_secret_access_key = s\nregion=x\n";
        let profile = parse("default", credentials, config).unwrap();
        assert_eq!((profile.key_id.as_str(), profile.secret.as_str()), ("ID", "se=cret"));
        assert_eq!((profile.token, profile.region.as_deref()), (None, Some("eu-west-1")));
        let other = parse("other", credentials, config).unwrap();
        assert_eq!(
            (other.key_id.as_str(), other.secret.as_str(), other.region.as_deref()),
            ("OTHER", "s", Some("x"))
        );
        assert!(parse("third", credentials, config).is_none());
        assert!(parse("default", "", "").is_none());
    }
}
