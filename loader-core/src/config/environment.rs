//! Reads the options from environment variables.

use std::{env, ffi::OsString, str::FromStr};

use super::{ConfigError, OPTIONS, nearest};
use crate::options::{LoaderOptions, NumWorkers};

const PREFIX: &str = "LOADER_";
/// Variables with this prefix that are not options: the path of the worker program, and the variable that
/// main sets for workers.
const NOT_OPTIONS: [&str; 2] = ["LOADER_WORKER", "LOADER_WORKER_LIFELINE"];
/// Min similarity to an option's name at which an unknown variable counts as misspelt, which is an error.
/// High, because other programs may use variables with this prefix.
const MIN_SIMILARITY: f64 = 0.8;

impl LoaderOptions {
    /// Reads the options from environment variables. The variable of an option is its name in upper case with
    /// the prefix `LOADER_`, such as `LOADER_BATCH_SIZE`.
    ///
    /// Values are written as in TOML, but strings without quotes and numbers without underscores. `1` and `0`
    /// also stand for true and false. An empty value is an error.
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
        set(&mut options, &name, &value.to_string_lossy())?;
    }
    Ok(options)
}

fn set(options: &mut LoaderOptions, name: &str, value: &str) -> Result<(), ConfigError> {
    const NUMBER: &str = "a whole number from 0";
    const SWITCH: &str = "true or false";
    let option = name[PREFIX.len()..].to_lowercase();
    let wrong = |expected: &str| {
        let (name, value, expected) = (name.to_owned(), value.to_owned(), expected.to_owned());
        ConfigError::WrongVariable { name, value, expected }
    };
    let switch = || match value {
        "true" | "1" => Ok(Some(true)),
        "false" | "0" => Ok(Some(false)),
        _ => Err(wrong(SWITCH)),
    };
    match option.as_str() {
        "batch_size" => options.batch_size = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "shuffle" => options.shuffle = switch()?,
        "seed" => options.seed = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "order" => options.order = Some(parsed(value).ok_or_else(|| wrong("native or torch"))?),
        "rank" => options.rank = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "world_size" => options.world_size = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "num_workers" => {
            let workers = parsed::<NumWorkers>(value).ok_or_else(|| wrong("a number of workers or auto"))?;
            options.num_workers = Some(workers);
        }
        "prefetch_factor" => options.prefetch_factor = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "drop_last" => options.drop_last = switch()?,
        "in_order" => options.in_order = switch()?,
        "persistent_workers" => options.persistent_workers = switch()?,
        "pin_memory" => options.pin_memory = switch()?,
        "timeout" => options.timeout = Some(parsed(value).ok_or_else(|| wrong("a number of seconds"))?),
        "warn_after" => options.warn_after = Some(parsed(value).ok_or_else(|| wrong("a number of seconds"))?),
        "shards" => options.shards = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "shared_memory_limit" => {
            options.shared_memory_limit = Some(parsed(value).ok_or_else(|| wrong("a number of bytes"))?);
        }
        "on_worker_death" => {
            options.on_worker_death = Some(parsed(value).ok_or_else(|| wrong("restart or fail"))?);
        }
        "max_worker_deaths" => {
            options.max_worker_deaths = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?);
        }
        "on_bad_sample" => {
            options.on_bad_sample = Some(parsed(value).ok_or_else(|| wrong("error, skip or replace"))?);
        }
        "max_bad_samples" => options.max_bad_samples = Some(parsed(value).ok_or_else(|| wrong(NUMBER))?),
        "sample_timeout" => {
            options.sample_timeout = Some(parsed(value).ok_or_else(|| wrong("a number of seconds"))?);
        }
        "hedge" => options.hedge = switch()?,
        "worker_memory_limit" => {
            options.worker_memory_limit = Some(parsed(value).ok_or_else(|| wrong("a number of bytes"))?);
        }
        _ => {
            if let Some(likely) = nearest(&option, OPTIONS, MIN_SIMILARITY) {
                let nearest = format!("{PREFIX}{}", likely.to_uppercase());
                return Err(ConfigError::UnknownVariable { name: name.to_owned(), nearest });
            }
        }
    }
    Ok(())
}

fn parsed<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OnBadSample, OnWorkerDeath, Order};

    fn read(variables: &[(&str, &str)]) -> Result<LoaderOptions, ConfigError> {
        from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn every_option_has_a_variable() {
        let options = read(&[
            ("LOADER_BATCH_SIZE", "64"),
            ("LOADER_SHUFFLE", "true"),
            ("LOADER_SEED", "18446744073709551615"),
            ("LOADER_ORDER", "torch"),
            ("LOADER_RANK", "1"),
            ("LOADER_WORLD_SIZE", "4"),
            ("LOADER_NUM_WORKERS", "auto"),
            ("LOADER_PREFETCH_FACTOR", "3"),
            ("LOADER_DROP_LAST", "1"),
            ("LOADER_IN_ORDER", "false"),
            ("LOADER_PERSISTENT_WORKERS", "true"),
            ("LOADER_PIN_MEMORY", "1"),
            ("LOADER_TIMEOUT", "2.5"),
            ("LOADER_WARN_AFTER", "5"),
            ("LOADER_SHARDS", "6"),
            ("LOADER_SHARED_MEMORY_LIMIT", "1000000"),
            ("LOADER_ON_WORKER_DEATH", "fail"),
            ("LOADER_MAX_WORKER_DEATHS", "5"),
            ("LOADER_ON_BAD_SAMPLE", "skip"),
            ("LOADER_MAX_BAD_SAMPLES", "100"),
            ("LOADER_SAMPLE_TIMEOUT", "2.5"),
            ("LOADER_WORKER_MEMORY_LIMIT", "2000000"),
            ("LOADER_HEDGE", "true"),
        ]);
        let expected = LoaderOptions {
            batch_size: Some(64),
            shuffle: Some(true),
            seed: Some(u64::MAX),
            order: Some(Order::Torch),
            rank: Some(1),
            world_size: Some(4),
            num_workers: Some(NumWorkers::Auto),
            prefetch_factor: Some(3),
            drop_last: Some(true),
            in_order: Some(false),
            timeout: Some(2.5),
            warn_after: Some(5.0),
            shards: Some(6),
            persistent_workers: Some(true),
            pin_memory: Some(true),
            shared_memory_limit: Some(1_000_000),
            on_worker_death: Some(OnWorkerDeath::Fail),
            max_worker_deaths: Some(5),
            on_bad_sample: Some(OnBadSample::Skip),
            max_bad_samples: Some(100),
            sample_timeout: Some(2.5),
            worker_memory_limit: Some(2_000_000),
            hedge: Some(true),
        };
        assert_eq!(options.unwrap(), expected);
        assert_eq!(read(&[("LOADER_NUM_WORKERS", "4")]).unwrap().num_workers, Some(NumWorkers::Fixed(4)));
    }

    #[test]
    fn a_bad_value_names_the_variable() {
        for option in OPTIONS {
            let name = format!("LOADER_{}", option.to_uppercase());
            for value in ["many", ""] {
                let error = read(&[(&name, value)]).unwrap_err().to_string();
                let expected = format!("the environment variable {name} is `{value}`; expected ");
                assert!(error.starts_with(&expected), "{error}");
            }
        }
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
