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
/// /// Documentation of the field.
/// name: Type = default => { property: value, ... },
/// ```
///
/// The field has the type `Option<Type>`; an option without a default value leaves `= default` out. The
/// properties are fields of [`OptionInfo`]; those that are left out have the values at the end of the macro.
macro_rules! options {
    (
        $(#[$struct_attribute:meta])*
        pub struct $options:ident {$(
            $(#[$attribute:meta])*
            $name:ident: $type:ident $(= $default:expr)? => { $($property:ident: $value:expr),* $(,)? },
        )*}
    ) => {
        $(#[$struct_attribute])*
        pub struct $options {$(
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
                $($property: $value,)*
                ..Self {
                    name: stringify!($name),
                    kind: <$type as OptionValue>::KIND,
                    bounds: "",
                    help: "",
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
        /// Samples per batch, at least 1; 1 by default.
        batch_size: usize = 1 => { bounds: "at least 1", help: "Samples per batch, at least 1" },
        /// True to load the samples in a new random order in each epoch; false by default.
        shuffle: bool = false => { help: "Use a new random order in each epoch" },
        /// Seed of the order and of [`SampleContext::rng`](crate::SampleContext::rng); 0 by default.
        seed: u64 = 0 => { bounds: "64 bits", help: "Seed of the order and of the augmentation" },
        /// Random number generator that determines the order; [`Order::Native`] by default.
        order: Order = Order::Native => {
            help: "Random order: that of this loader, or exactly that of PyTorch",
        },
        /// Rank of this process among `world_size` processes, from 0. Each process loads its own share of the
        /// samples. Needs `world_size`.
        rank: usize => {
            bounds: "below `world_size`; needs it",
            help: "Number of this process, from 0, among those that train together; needs --world-size",
        },
        /// Number of processes that each load a share of the samples, at least 1. Needs `rank`.
        world_size: usize => {
            bounds: "at least 1; needs `rank`",
            help: "Number of processes that train together; needs --rank",
        },
        /// Number of consecutive ranks that load the same samples, at least 1; 1 by default. See
        /// [`Builder::group_size`](crate::Builder::group_size).
        group_size: usize = 1 => {
            bounds: "at least 1; divides `world_size`",
            help: "Number of consecutive ranks that load the same samples, as with tensor or pipeline parallelism",
        },
        /// Whether the rank and the world size, if they are not set, are those that a launcher such as
        /// torchrun gave this process in environment variables. Not by default.
        launcher: LauncherMode => {
            help: "Take a rank that is not given from the launcher, such as torchrun; `run` and `plan` do by default",
        },
        /// True to leave out a last batch that is not full; false by default.
        drop_last: bool = false => {
            help: "Leave out a last batch that is not full, and samples that cannot be shared equally",
        },
        /// Number of worker processes, at most 4096; 0 by default.
        num_workers: NumWorkers = NumWorkers::Fixed(0) => {
            bounds: "at most 4096",
            help: "Number of worker processes, `auto`, or `auto:MIN-MAX`; 0 loads in this process",
        },
        /// Number of batches that the loader prefetches per worker, 1 to 65,536; 2 by default. Needs workers.
        prefetch_factor: PrefetchFactor = PrefetchFactor::Fixed(2) => {
            bounds: "1 to 65,536",
            help: "Number of batches to load ahead per worker, at least 1, or `auto`",
            without_workers: Invalid,
        },
        /// True to return batches in order, false to return them as they arrive; true by default.
        in_order: bool = true => { help: "Return batches in order, rather than as they arrive" },
        /// Time to wait for a batch before a warning names the awaited worker; 30 seconds by default, zero
        /// for never.
        #[serde(with = "units::Time")]
        warn_after: Duration = Duration::from_secs(30) => {
            bounds: "0 or more; 0 is never",
            help: "Seconds of a wait before a warning names the awaited worker, 0 for never; needs workers",
            without_workers: Ignored,
        },
        /// True to keep the workers from one epoch to the next; false by default. Needs workers.
        persistent_workers: bool = false => {
            help: "Keep the workers from one epoch to the next",
            without_workers: Invalid,
        },
        /// Maximum time to wait for a batch; zero, the default, waits for ever. Needs workers.
        #[serde(with = "units::Time")]
        timeout: Duration = Duration::ZERO => {
            bounds: "0 or more; 0 is no limit",
            help: "Maximum wait for a batch in seconds, 0 for no limit",
            without_workers: Invalid,
        },
        /// Number of shards in which this process reads an iterable dataset, 1 to 65,536; by default the
        /// number of workers, or 1 without workers. Not for a map-style dataset.
        shards: usize => {
            bounds: "1 to 65,536; iterable datasets only",
            help: "Number of shards in which a stream is read; the order of its batches depends on it",
            default_note: "as many as workers",
        },
        /// Number of batches in an epoch of an iterable dataset, at least 1; by default all. Not for a map-style
        /// dataset. See [`Builder::steps_per_epoch`](crate::Builder::steps_per_epoch).
        steps_per_epoch: u64 => {
            bounds: "at least 1; iterable datasets only",
            help: "Number of batches after which an epoch of a stream ends; a stream that ends before fails",
            default_note: "all batches",
        },
        /// True to load batches into page-locked memory, from which a GPU can copy asynchronously; false by
        /// default.
        pin_memory: bool = false => {
            help: "Load batches into page-locked memory, for a GPU; needs the feature `cuda`",
        },
        /// Maximum bytes of batches in shared memory and of what datasets keep, in all processes of the
        /// loader together, at least 131,072; by default half of the memory that the process may use, divided by
        /// the number of the launcher's processes on this machine.
        #[serde(with = "units::Size")]
        memory_limit: u64 => {
            kind: OptionKind::Bytes,
            bounds: "at least 131,072",
            help: "Maximum bytes of batches in shared memory and of what datasets keep, in all processes together",
            default_note: "half of the memory that this process may use, divided by the number of the launcher's processes on the machine",
        },
        /// Maximum bytes of shared memory for batches, at least 65,536 and below `memory_limit`; by default
        /// half of `memory_limit`.
        #[serde(with = "units::Size")]
        shared_memory_limit: u64 => {
            kind: OptionKind::Bytes,
            bounds: "at least 65,536; below `memory_limit`",
            help: "Maximum bytes of shared memory for batches",
            default_note: "half of `memory_limit`",
        },
        /// What happens when a worker dies; [`OnWorkerDeath::Restart`] by default.
        on_worker_death: OnWorkerDeath = OnWorkerDeath::Restart => {
            help: "What happens if a worker dies: another worker replaces it, or the run fails",
            without_workers: Ignored,
        },
        /// Maximum number of deaths of a worker in a row outside of batches after which it is started again;
        /// 10 by default. One more death ends the iterator.
        max_worker_deaths: u32 = 10 => {
            bounds: "0 or more",
            help: "Maximum number of deaths in a row of a worker that finishes no batch; more end the run",
            without_workers: Ignored,
        },
        /// What happens with a sample that cannot be loaded; [`OnBadSample::Error`] by default.
        on_bad_sample: OnBadSample = OnBadSample::Error => {
            bounds: "`\"replace\"`: map-style datasets only",
            help: "If a sample cannot be loaded: fail its batch, skip the sample, or replace it",
        },
        /// Maximum number of samples skipped or replaced in an epoch; 10 by default. One more ends the
        /// iterator.
        max_bad_samples: u64 = 10 => {
            bounds: "0 or more",
            help: "Maximum number of samples that may be skipped or replaced in an epoch",
        },
        /// True to digest the samples of each epoch; false by default. See
        /// [`SampleDigest`](crate::SampleDigest).
        digest: bool = false => {
            help: "Digest the samples of each epoch, to compare runs, or the parts of an epoch with the whole",
        },
        /// Maximum time for one sample; zero, the default, is no limit. A sample that takes longer is bad,
        /// and its worker is replaced. Needs workers.
        #[serde(with = "units::Time")]
        sample_timeout: Duration = Duration::ZERO => {
            bounds: "0 or more; 0 is no limit",
            help: "Maximum time for a sample in seconds, 0 for no limit",
            without_workers: Invalid,
        },
        /// CPUs to which each worker is bound; [`WorkerAffinity::Inherit`] by default.
        worker_affinity: WorkerAffinity = WorkerAffinity::Inherit => {
            bounds: "CPUs that this process may use",
            help: "CPUs of each worker: those of this process, its share of the machine, one CPU each, or listed sets",
            without_workers: Ignored,
        },
        /// Maximum bytes of private memory that a worker allocates after its start, at least 16,777,216; no
        /// limit by default. A worker that uses more is replaced between two batches. Needs workers.
        #[serde(with = "units::Size")]
        worker_memory_limit: u64 => {
            kind: OptionKind::Bytes,
            bounds: "at least 16,777,216",
            help: "Maximum bytes of private memory that a worker allocates",
            default_note: "no limit",
            without_workers: Invalid,
        },
        /// File for a trace of main and the workers, which the loader replaces at the end of each epoch; none by
        /// default. In its name, `{rank}` stands for the rank, also in a group of ranks.
        trace: PathBuf => {
            help: "File for a trace of main and the workers, for Perfetto or Chrome",
            default_note: "none",
        },
        /// File for a trace of the last events, which the loader writes when an error ends the epoch, and when it has
        /// replaced a worker that died; none by default. In its name, `{rank}` stands for the rank, also in a group of
        /// ranks.
        trace_on_failure: PathBuf => {
            help: "File for a trace of the last events, written if an error ends the epoch or a worker dies",
            default_note: "none",
        },
        /// Address at which the loader serves its statistics over HTTP, in the text format of Prometheus; none by
        /// default.
        metrics: SocketAddr => {
            help: "Address at which metrics are served for Prometheus, such as 127.0.0.1:9100",
            default_note: "none",
        },
        /// False to leave each batch to the worker whose turn it is, however late it is; true by default.
        move_tasks: bool = true => {
            help: "Let idle workers take over batches that wait behind a slow one",
            without_workers: Ignored,
        },
        /// True to give a late batch to a second, idle worker too; false by default. Needs workers.
        hedge: bool = false => {
            help: "Give a late batch to a second worker too",
            without_workers: Invalid,
        },
        /// True to make the kernel's OOM killer prefer workers to main, by an `oom_score_adj` 500 above that of main;
        /// true by default. False leaves workers that of main.
        raise_oom_score_adj: bool = true => {
            help: "Make the kernel's OOM killer prefer workers to this process",
            without_workers: Ignored,
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
