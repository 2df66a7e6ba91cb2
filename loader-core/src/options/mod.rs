//! The loader's options as plain values, which a config file, environment variables and a command line can
//! set.
//!
//! The struct at the end of this file is the only list of the options. Everything else comes from it: the
//! setters, the defaults, the keys of config files, the environment variables, the options of the `loader`
//! command, and the table in docs/configuration.md, which a test in `config` compares with it and rewrites.
//!
//! To add an option, add a field here and use it where it takes effect. If programs are to set it in code,
//! add a method to [`Builder`](crate::Builder), whose documentation says more than a table can.
//!
//! Alternative considered: serde for the environment and clap's derive for the command line, both on this
//! struct. Rejected because loader-core would depend on clap, because `loader plan` needs a part of the
//! options, which a derived struct cannot give, and because the table needs each option's bounds anyway.

mod affinity;
mod auto;
mod info;
pub mod units;
mod values;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use info::WithoutWorkers::{Ignored, Invalid, Used};
use values::OptionValue;

pub use affinity::WorkerAffinity;
pub use auto::{AutoWorkers, NumWorkers, PrefetchFactor};
#[cfg(all(test, feature = "config"))]
pub(crate) use info::listed;
pub use info::{OptionInfo, OptionKind, ParseOptionError};
pub use values::{LauncherMode, OnBadSample, OnWorkerDeath, Order};

/// Makes [`LoaderOptions`] from a list of fields. An option is written as
///
/// ```text
/// name: Type = default => { "help"; bounds: "bounds"; default: "default in words", property: value, ... },
/// ```
///
/// The field has the type `Option<Type>`; an option without a default value leaves `= default` out. All but the
/// help may be left out. The properties are fields of [`OptionInfo`]; those that are left out have the values at
/// the end of the macro. The documentation of the field is made of the texts.
macro_rules! options {
    (
        $(#[$struct_attribute:meta])*
        pub struct $options:ident {$(
            $(#[$attribute:meta])*
            $name:ident: $type:ident $(= $default:expr)? => {
                $help:literal
                $(; bounds: $bounds:literal)?
                $(; default: $note:literal)?
                $(, $property:ident: $value:expr)*
            },
        )*}
    ) => {
        $(#[$struct_attribute])*
        pub struct $options {$(
            #[doc = concat!($help, ".")]
            #[doc = ""]
            $(#[doc = concat!("Bounds: ", $bounds, ". ")])?
            #[doc = concat!("Default: ", options!(@shown $($default)? $($note)?), ".")]
            $(#[$attribute])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $name: Option<$type>,
        )*}

        impl $options {
            /// The default values. An option without one, or whose default depends on the machine or on
            /// another option, is `None`.
            pub const DEFAULTS: Self = Self { $($name: options!(@optional $($default)?),)* };

            $(
                #[doc = concat!("Sets [`", stringify!($name), "`](#structfield.", stringify!($name), ").")]
                #[must_use]
                pub fn $name(mut self, $name: options!(@parameter $type)) -> Self {
                    self.$name = Some($name.into());
                    self
                }
            )*
        }

        /// The default values of the options that have one.
        pub(crate) mod default {
            use super::*;

            $($(
                pub(crate) fn $name() -> $type {
                    $default
                }
            )?)*
        }

        impl OptionInfo {
            /// All options, in the order of the fields of [`LoaderOptions`].
            pub const ALL: &[Self] = &[$(Self {
                help: $help,
                $(bounds: $bounds,)?
                $(default_note: $note,)?
                $($property: $value,)*
                ..Self {
                    name: stringify!($name),
                    kind: <$type as OptionValue>::KIND,
                    help: "",
                    bounds: "",
                    default_note: "",
                    without_workers: Used,
                    set: |options, text| {
                        options.$name = Some(OptionValue::from_text(text)?);
                        Some(())
                    },
                    get: |options| options.$name.as_ref().map(OptionValue::to_text),
                    inherit: |options, below| {
                        if options.$name.is_none() {
                            options.$name.clone_from(&below.$name);
                        }
                    },
                }
            }),*];
        }
    };
    (@shown) => { "none" };
    (@shown $text:literal) => { $text };
    (@shown $default:expr) => { concat!("`", stringify!($default), "`") };
    (@optional) => { None };
    (@optional $default:expr) => { Some($default) };
    (@parameter NumWorkers) => { impl Into<NumWorkers> };
    (@parameter PathBuf) => { impl Into<PathBuf> };
    (@parameter PrefetchFactor) => { impl Into<PrefetchFactor> };
    (@parameter $type:ident) => { $type };
}

options! {
    /// The loader's options, as in the section `[loader]` of a config file. `None` stands for the default.
    /// [`Builder::options`](crate::Builder::options) applies them to a builder; each field means the same as
    /// the builder's method of its name. [`OptionInfo`] describes the options to a program.
    ///
    /// # Examples
    /// ```
    /// use loader_core::LoaderOptions;
    ///
    /// let options = LoaderOptions::default().batch_size(64).shuffle(true).num_workers(4);
    /// assert_eq!(options.batch_size, Some(64));
    /// ```
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[non_exhaustive]
    pub struct LoaderOptions {
        batch_size: usize = 1 => {
            "Samples per batch";
            bounds: "at least 1"
        },
        shuffle: bool = false => {
            "Use a new random order in each epoch"
        },
        seed: u64 = 0 => {
            "Seed of the order and of the augmentation";
            bounds: "64 bits"
        },
        order: Order = Order::Native => {
            "Random order: that of this loader, or exactly that of PyTorch"
        },
        rank: usize => {
            "Number of this process, from 0, among the processes that train together; each loads a share of the samples";
            bounds: "below `world_size`; needs `world_size`"
        },
        world_size: usize => {
            "Number of processes that train together; each loads a share of the samples";
            bounds: "at least 1; needs `rank`"
        },
        group_size: usize = 1 => {
            "Number of consecutive ranks that load the same samples, as with tensor or pipeline parallelism";
            bounds: "at least 1; divides `world_size`"
        },
        launcher: LauncherMode => {
            "Whether a rank that is not set is read from the variables of the launcher, such as torchrun; the commands `run` and `plan` do so by default"
        },
        drop_last: bool = false => {
            "Leave out a last batch that is not full, and samples that cannot be shared equally"
        },
        num_workers: NumWorkers = NumWorkers::Fixed(0) => {
            "Number of worker processes, `auto`, or `auto:MIN-MAX`; 0 loads in this process";
            bounds: "at most 4096"
        },
        prefetch_factor: PrefetchFactor = PrefetchFactor::Fixed(2) => {
            "Number of batches to load ahead per worker, or `auto`";
            bounds: "1 to 65,536",
            without_workers: Invalid
        },
        in_order: bool = true => {
            "Return batches in order, rather than as they arrive"
        },
        #[serde(with = "units::Time")]
        warn_after: Duration = Duration::from_secs(30) => {
            "Time of a wait, in seconds unless a unit is given, after which a warning names the awaited worker";
            bounds: "0 or more; 0 turns the warning off",
            without_workers: Ignored
        },
        persistent_workers: bool = false => {
            "Keep the workers from one epoch to the next",
            without_workers: Invalid
        },
        #[serde(with = "units::Time")]
        timeout: Duration = Duration::ZERO => {
            "Maximum time of a wait for a batch, in seconds unless a unit is given";
            bounds: "0 or more; 0 is no limit",
            without_workers: Invalid
        },
        shards: usize => {
            "Number of shards in which a stream is read; the order of its batches depends on it";
            bounds: "1 to 65,536; iterable datasets only";
            default: "as many as workers"
        },
        steps_per_epoch: u64 => {
            "Number of batches after which an epoch of a stream ends; a stream that ends before fails";
            bounds: "at least 1; iterable datasets only";
            default: "all batches"
        },
        pin_memory: bool = false => {
            "Load batches into page-locked memory, for a GPU; needs the feature `cuda`"
        },
        #[serde(with = "units::Size")]
        memory_limit: u64 => {
            "Maximum bytes of batches in shared memory and of what datasets keep, in all processes together";
            bounds: "at least 131,072";
            default: "half of the memory that this process may use, divided by the number of the launcher's processes on the machine",
            kind: OptionKind::Bytes
        },
        #[serde(with = "units::Size")]
        shared_memory_limit: u64 => {
            "Maximum bytes of shared memory for batches";
            bounds: "at least 65,536; below `memory_limit`";
            default: "half of `memory_limit`",
            kind: OptionKind::Bytes
        },
        on_worker_death: OnWorkerDeath = OnWorkerDeath::Restart => {
            "What happens if a worker dies: another worker replaces it, or the run fails",
            without_workers: Ignored
        },
        max_worker_deaths: u32 = 10 => {
            "Maximum number of deaths in a row of a worker that finishes no batch; more end the run";
            bounds: "0 or more",
            without_workers: Ignored
        },
        on_bad_sample: OnBadSample = OnBadSample::Error => {
            "If a sample cannot be loaded: fail its batch, skip the sample, or replace it";
            bounds: "`\"replace\"`: map-style datasets only"
        },
        max_bad_samples: u64 = 10 => {
            "Maximum number of samples that may be skipped or replaced in an epoch";
            bounds: "0 or more"
        },
        digest: bool = false => {
            "Digest the samples of each epoch, to compare runs, or the parts of an epoch with the whole"
        },
        #[serde(with = "units::Time")]
        sample_timeout: Duration = Duration::ZERO => {
            "Maximum time for one sample, in seconds unless a unit is given; a sample that takes longer is bad";
            bounds: "0 or more; 0 is no limit",
            without_workers: Invalid
        },
        worker_affinity: WorkerAffinity = WorkerAffinity::Inherit => {
            "CPUs of each worker: those of this process, its share of the machine, one CPU each, or listed sets";
            bounds: "CPUs that this process may use",
            without_workers: Ignored
        },
        #[serde(with = "units::Size")]
        worker_memory_limit: u64 => {
            "Maximum bytes of private memory that a worker allocates";
            bounds: "at least 16,777,216";
            default: "no limit",
            kind: OptionKind::Bytes,
            without_workers: Invalid
        },
        trace: PathBuf => {
            "File for a trace of main and the workers, for Perfetto or Chrome";
            default: "none"
        },
        trace_on_failure: PathBuf => {
            "File for a trace of the last events, written if an error ends the epoch or a worker dies";
            default: "none"
        },
        metrics: SocketAddr => {
            "Address at which metrics are served for Prometheus, such as 127.0.0.1:9100";
            default: "none"
        },
        move_tasks: bool = true => {
            "Let idle workers take over batches that wait behind a slow one",
            without_workers: Ignored
        },
        hedge: bool = false => {
            "Give a late batch to a second worker too",
            without_workers: Invalid
        },
        raise_oom_score_adj: bool = true => {
            "Make the kernel's OOM killer prefer workers to this process",
            without_workers: Ignored
        },
    }
}

impl LoaderOptions {
    /// Layers these options over `below`: each option that is `None` here is taken from `below`. The loader
    /// cannot notice swapped layers; read it as a sentence, "the environment over the file".
    ///
    /// If `num_workers` is 0 here, the options `prefetch_factor`, `timeout`, `sample_timeout`,
    /// `persistent_workers`, `worker_memory_limit` and `hedge` of `below` are ignored. They need workers, and
    /// a user who switches workers off for one run should not have to remove them from the config file.
    ///
    /// # Examples
    /// ```
    /// use loader_core::LoaderOptions;
    ///
    /// let file = LoaderOptions::default().batch_size(64).seed(1);
    /// let environment = LoaderOptions::default().batch_size(32);
    /// let options = environment.over(file);
    /// assert_eq!((options.batch_size, options.seed), (Some(32), Some(1)));
    /// ```
    #[must_use]
    pub fn over(mut self, below: Self) -> Self {
        let switches_off = self.num_workers == Some(NumWorkers::Fixed(0));
        for option in OptionInfo::ALL.iter().filter(|option| !(switches_off && option.needs_workers())) {
            (option.inherit)(&mut self, &below);
        }
        self
    }

    /// Fills the defaults in. Without workers, options that need workers stay `None`.
    #[must_use]
    pub(crate) fn with_defaults(mut self, has_workers: bool) -> Self {
        let is_used = |option: &&OptionInfo| has_workers || option.without_workers == Used;
        for option in OptionInfo::ALL.iter().filter(is_used) {
            (option.inherit)(&mut self, &Self::DEFAULTS);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_the_default_of_its_type() {
        let options = LoaderOptions::DEFAULTS;
        assert_eq!(options.num_workers, Some(NumWorkers::default()));
        assert_eq!(options.order, Some(Order::default()));
        assert_eq!(options.on_worker_death, Some(OnWorkerDeath::default()));
        assert_eq!(options.on_bad_sample, Some(OnBadSample::default()));
        assert_eq!(options.worker_affinity, Some(WorkerAffinity::default()));
    }

    #[test]
    fn a_value_that_cannot_be_read_is_an_error_of_a_type() {
        fn message(error: impl std::error::Error) -> String {
            error.to_string()
        }
        let order = message("pytorch".parse::<Order>().unwrap_err());
        assert_eq!(order, "`pytorch` is not one of \"native\", \"torch\" and \"torch-persistent\"");
        let bad_sample = message("stop".parse::<OnBadSample>().unwrap_err());
        assert_eq!(bad_sample, "`stop` is not one of \"error\", \"skip\" and \"replace\"");
        let workers = message("-1".parse::<NumWorkers>().unwrap_err());
        assert_eq!(workers, "`-1` is not a number of workers, \"auto\" or \"auto:MIN-MAX\"");
        let mut options = LoaderOptions::default();
        let seed = OptionInfo::ALL.iter().find(|option| option.name() == "seed").unwrap();
        assert_eq!(message(seed.set(&mut options, "x").unwrap_err()), "`x` is not a whole number from 0");
        assert_eq!(options, LoaderOptions::default());
    }
}
