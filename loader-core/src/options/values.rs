//! The types of values that options have, and how they are written as text.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    affinity::WorkerAffinity,
    auto::{NumWorkers, PrefetchFactor},
    info::{OptionKind, ParseOptionError},
    units::Measured,
};

/// A type of an option's values. A text is the value of an environment variable or of a command-line option.
pub(super) trait OptionValue: Sized {
    /// The kind of the option, unless its declaration gives another one.
    const KIND: OptionKind;

    fn from_text(text: &str) -> Option<Self>;
    fn to_text(&self) -> String;
}

/// Implements `OptionValue` for types whose texts are those of `FromStr` and `Display`.
macro_rules! option_values {
    ($($type:ty: $kind:expr),*) => {$(
        impl OptionValue for $type {
            const KIND: OptionKind = $kind;

            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

option_values!(
    usize: OptionKind::Number,
    u32: OptionKind::Number,
    u64: OptionKind::Number,
    NumWorkers: OptionKind::NumWorkers,
    PrefetchFactor: OptionKind::NumberOrAuto,
    SocketAddr: OptionKind::Address,
    WorkerAffinity: OptionKind::Affinity
);

/// Implements `FromStr`, `Display` and `OptionValue` for an enum, given the names of its variants.
macro_rules! written_as {
    ($type:ident { $($variant:ident: $name:literal),* }) => {
        impl FromStr for $type {
            type Err = ParseOptionError;

            fn from_str(text: &str) -> Result<Self, ParseOptionError> {
                match text {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(ParseOptionError::new(text, Self::KIND)),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $name,)*
                })
            }
        }

        option_values!($type: OptionKind::Choice(&[$($name),*]));
    };
}

impl OptionValue for bool {
    const KIND: OptionKind = OptionKind::Switch;

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for Duration {
    const KIND: OptionKind = OptionKind::Seconds;

    fn from_text(text: &str) -> Option<Self> {
        Measured::from_text(text)
    }

    fn to_text(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

impl OptionValue for PathBuf {
    const KIND: OptionKind = OptionKind::Path;

    fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.into())
    }

    fn to_text(&self) -> String {
        self.display().to_string()
    }
}

/// Random number generator that determines the order of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Order {
    /// This crate's own generator. The order of an epoch is computed without computing those of earlier
    /// epochs. It takes constant memory for 65,536 samples or more, and 8 bytes a sample for fewer.
    #[default]
    Native,
    /// PyTorch's generator. The order is exactly that of a `DataLoader` which shares one `torch.Generator`,
    /// seeded with the loader's seed, with its sampler. It takes 8 bytes a sample. To compute the order of an
    /// epoch, the generator skips the numbers that earlier epochs used, at about a third of a nanosecond per
    /// number.
    Torch,
    /// As [`Torch`](Self::Torch), with a `DataLoader` that has `persistent_workers=True`: PyTorch then draws the
    /// base seed only before the first epoch, so later epochs have another order than with `Torch`.
    #[serde(rename = "torch-persistent")]
    TorchPersistent,
}

impl Order {
    /// True if the order is one of PyTorch's.
    pub(crate) fn is_torch(self) -> bool {
        match self {
            Self::Native => false,
            Self::Torch | Self::TorchPersistent => true,
        }
    }
}

written_as!(Order { Native: "native", Torch: "torch", TorchPersistent: "torch-persistent" });

/// Whether a loader without `rank` loads the share that the launcher of the process gave it. A launcher is a
/// program that starts the processes of a distributed run, such as torchrun; [`Launcher`](crate::Launcher)
/// lists them.
///
/// If the option is not set, the loader loads the whole dataset, and warns with
/// [`Warning::RankIgnored`](crate::Warning::RankIgnored) if a launcher has started more than one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LauncherMode {
    /// Rank and world size are those in the launcher's environment variables when the loader is built.
    /// Without a launcher, the process is the only one.
    Auto,
    /// The environment is ignored.
    Off,
}

written_as!(LauncherMode { Auto: "auto", Off: "off" });

/// What happens when a worker process dies while it has work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnWorkerDeath {
    /// Another process takes its place and loads its unfinished batches again. The loader returns the same
    /// batches as without the death.
    #[default]
    Restart,
    /// The iterator ends with [`Error::WorkerExited`](crate::Error::WorkerExited), as in PyTorch.
    Fail,
}

written_as!(OnWorkerDeath { Restart: "restart", Fail: "fail" });

/// What happens with a bad sample. A sample is bad if [`Dataset::get`](crate::Dataset::get) returns an error
/// or panics, takes longer than `sample_timeout`, or repeatedly ends its worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnBadSample {
    /// The iterator returns an error in place of the sample's batch and continues with the next batch.
    #[default]
    Error,
    /// The batch leaves the sample out and is shorter. A batch of which no sample is left is left out.
    Skip,
    /// Another sample takes its place. For map-style datasets only.
    ///
    /// The sample is drawn from the seed, the epoch and the index, so it is the same one in every run. It is
    /// drawn from the whole dataset, or from the bad sample's own batch if a sampler, a batch sampler or a
    /// rank is set, because these may leave samples out on purpose. If it is bad too, another one is drawn;
    /// after 16 bad samples for one position, the batch leaves the position out.
    Replace,
}

written_as!(OnBadSample { Error: "error", Skip: "skip", Replace: "replace" });
