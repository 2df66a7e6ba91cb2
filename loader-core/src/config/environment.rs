//! Reads the options from environment variables.

use std::{env, ffi::OsString};

use super::{ConfigError, nearest, option_names};
use crate::options::{LoaderOptions, OptionInfo};

const PREFIX: &str = "LOADER_";
/// Variables with this prefix that are not options: the path of the worker program, and the variable that
/// main sets for workers.
const NOT_OPTIONS: [&str; 2] = ["LOADER_WORKER", "LOADER_WORKER_LIFELINE"];
/// Minimum similarity to an option's name at which an unknown variable counts as misspelt, which is an error.
/// High, because other programs may use variables with this prefix.
const MIN_SIMILARITY: f64 = 0.8;

impl LoaderOptions {
    /// Reads the options from environment variables. The variable of an option is its name in upper case with
    /// the prefix `LOADER_`, such as `LOADER_BATCH_SIZE`. Needs the feature `config`.
    ///
    /// [`OptionInfo::set`] reads the values. An empty value is an error.
    ///
    /// # Errors
    /// - [`ConfigError::WrongVariable`]: a value cannot be read.
    /// - [`ConfigError::UnknownVariable`]: the name of a variable is almost that of an option.
    ///
    /// # Examples
    /// ```no_run
    /// # fn options_of_the_file() -> loader_core::LoaderOptions { Default::default() }
    /// use loader_core::LoaderOptions;
    ///
    /// let options = LoaderOptions::from_env()?.over(options_of_the_file());
    /// # Ok::<(), loader_core::config::ConfigError>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        from_variables(env::vars_os())
    }
}

fn from_variables(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<LoaderOptions, ConfigError> {
    let mut options = LoaderOptions::default();
    // Sorted by name, so that the same error is reported every time if there are several.
    let mut ours: Vec<(String, OsString)> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(PREFIX) && !NOT_OPTIONS.contains(&name.as_str()))
        .collect();
    ours.sort();
    for (name, value) in ours {
        let key = name[PREFIX.len()..].to_lowercase();
        if let Some(option) = OptionInfo::ALL.iter().find(|option| option.name() == key) {
            let value = value.to_string_lossy();
            if let Err(error) = option.set(&mut options, &value) {
                let (value, expected) = (value.into_owned(), error.expected().to_string());
                return Err(ConfigError::WrongVariable { name, value, expected });
            }
        } else if let Some(likely) = nearest(&key, option_names(), MIN_SIMILARITY) {
            let nearest = format!("{PREFIX}{}", likely.to_uppercase());
            return Err(ConfigError::UnknownVariable { name, nearest });
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NumWorkers, OptionKind, config::tests::every_option};

    fn read(variables: &[(&str, &str)]) -> Result<LoaderOptions, ConfigError> {
        from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn every_option_has_a_variable() {
        let options = every_option();
        let variables = OptionInfo::ALL
            .iter()
            .map(|option| (option.variable().into(), option.get(&options).expect("it is set").into()));
        assert_eq!(from_variables(variables).unwrap(), options);
        assert_eq!(read(&[("LOADER_NUM_WORKERS", "4")]).unwrap().num_workers, Some(NumWorkers::Fixed(4)));
        assert_eq!(read(&[("LOADER_SHUFFLE", "1")]).unwrap(), LoaderOptions::default().shuffle(true));
        let size = read(&[("LOADER_WORKER_MEMORY_LIMIT", "512 MB")]).unwrap();
        assert_eq!(size, LoaderOptions::default().worker_memory_limit(512_000_000));
        assert_eq!(read(&[("LOADER_IN_ORDER", "0")]).unwrap(), LoaderOptions::default().in_order(false));
    }

    #[test]
    fn a_bad_value_names_the_variable() {
        // Any text but the empty one is a path.
        for option in OptionInfo::ALL.iter().filter(|option| option.kind() != OptionKind::Path) {
            let name = option.variable();
            for value in ["many", "", "-1"] {
                let error = read(&[(&name, value)]).unwrap_err().to_string();
                let expected = option.kind();
                assert_eq!(
                    error,
                    format!("the environment variable {name} is `{value}`; expected {expected}")
                );
            }
        }
        assert!(read(&[("LOADER_TRACE", "")]).unwrap_err().to_string().ends_with("expected a path"));
        let choice = read(&[("LOADER_ON_BAD_SAMPLE", "stop")]).unwrap_err().to_string();
        assert!(choice.ends_with("expected error, skip or replace"), "{choice}");
    }

    #[test]
    fn a_misspelt_name_is_an_error() {
        let cases = [
            ("LOADER_BATCHSIZE", "LOADER_BATCH_SIZE"),
            ("LOADER_BATCH", "LOADER_BATCH_SIZE"),
            ("LOADER_WORKERS", "LOADER_NUM_WORKERS"),
            ("LOADER_NUM_WORKER", "LOADER_NUM_WORKERS"),
            ("LOADER_PREFETCH", "LOADER_PREFETCH_FACTOR"),
            ("LOADER_SEEDS", "LOADER_SEED"),
        ];
        for (name, nearest) in cases {
            let error = read(&[(name, "1")]).unwrap_err().to_string();
            assert_eq!(error, format!("unknown environment variable {name}; did you mean {nearest}?"));
        }
    }

    #[test]
    fn variables_of_other_programs_are_ignored() {
        let others = [
            ("LOADER_WORKER", "/bin/worker"),
            ("LOADER_WORKER_LIFELINE", "1"),
            ("LOADER_HOME", "/"),
            ("LOADER_LOG", "debug"),
            ("LOADER_PATH", "/"),
            ("BATCHSIZE", "1"),
        ];
        assert_eq!(read(&others).unwrap(), LoaderOptions::default());
    }
}
