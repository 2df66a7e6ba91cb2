//! Layers of options, and where each value comes from.

use std::{collections::BTreeMap, fmt};

use super::{Config, ConfigError, Location};
use crate::options::{LoaderOptions, OptionInfo};

/// Options from several sources, layered with [`LoaderOptions::over`], and where each value comes from.
///
/// # Examples
/// ```
/// use loader_core::{LoaderOptions, OptionInfo, config::{Config, LayeredOptions}};
///
/// let config = Config::from_toml("[loader]\nseed = 7\nbatch_size = 64\n")?;
/// let options = LayeredOptions::new(&config).under_env()?.under_command_line(LoaderOptions::default().seed(8));
/// let origin_of = |name| options.origin(OptionInfo::ALL.iter().find(|option| option.name() == name)?);
/// assert_eq!(origin_of("seed").unwrap().to_string(), "command line");
/// assert_eq!(origin_of("batch_size").unwrap().to_string(), "line 3");
/// assert_eq!(origin_of("shuffle"), None); // the default
/// # Ok::<(), loader_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct LayeredOptions {
    options: LoaderOptions,
    origins: BTreeMap<&'static str, Origin>,
}

/// Where the value of an option comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A config.
    File(Location),
    /// The environment variable of this name.
    Variable(String),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(location) => location.fmt(f),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

impl LayeredOptions {
    /// Takes the section `[loader]` of `config` as the lowest layer.
    pub fn new<D>(config: &Config<D>) -> Self {
        let location = |option: &OptionInfo| config.location(&format!("loader.{}", option.name())).cloned();
        Self::default().under(config.loader.clone(), |option| location(option).map(Origin::File))
    }

    /// Layers the [environment variables](LoaderOptions::from_env) over the options.
    ///
    /// # Errors
    /// The errors of [`LoaderOptions::from_env`].
    pub fn under_env(self) -> Result<Self, ConfigError> {
        Ok(self.under(LoaderOptions::from_env()?, |option| Some(Origin::Variable(option.variable()))))
    }

    /// Layers options of a command line over the options.
    #[must_use]
    pub fn under_command_line(self, upper: LoaderOptions) -> Self {
        self.under(upper, |_| Some(Origin::CommandLine))
    }

    /// Returns the options of all layers.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Returns where the value of `option` comes from; `None` if no layer sets it, or if it is ignored
    /// because an upper layer switches workers off.
    pub fn origin(&self, option: &OptionInfo) -> Option<&Origin> {
        self.origins.get(option.name())
    }

    fn under(mut self, upper: LoaderOptions, origin: impl Fn(&OptionInfo) -> Option<Origin>) -> Self {
        self.options = upper.clone().over(self.options);
        for option in OptionInfo::ALL {
            if option.get(&upper).is_some() {
                self.origins.extend(origin(option).map(|origin| (option.name(), origin)));
            } else if option.get(&self.options).is_none() {
                self.origins.remove(option.name());
            }
        }
        self
    }
}
