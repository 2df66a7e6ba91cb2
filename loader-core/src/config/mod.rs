//! Reads the loader's options from TOML files and environment variables.
//!
//! A file has two sections: `[loader]`, which is read into [`LoaderOptions`], and `[dataset]`, which is read
//! into a type of the program's. [`Builder::config`](crate::Builder::config) builds a loader with the options
//! of the file, and with the environment variables over them. This module and [`LoaderOptions::from_env`]
//! need the feature `config`. [`LoaderOptions::over`] layers options from other sources, such as a command
//! line.
//!
//! ```
//! use loader_core::config::Config;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Photos {
//!     path: std::path::PathBuf,
//! }
//!
//! let text = r#"
//!     [dataset]
//!     path = "photos"
//!     [loader]
//!     batch_size = 64
//!     num_workers = "auto"
//! "#;
//! let config = Config::from_toml_as::<Photos>(text)?; // or `Config::load_as::<Photos>("run.toml")?`
//! assert_eq!(config.dataset.path.to_str(), Some("photos"));
//! assert_eq!(config.loader.batch_size, Some(64));
//! // DataLoader::builder(dataset).config(&config)?.build()?
//! # Ok::<(), loader_core::config::ConfigError>(())
//! ```

mod document;
#[cfg(test)]
mod documentation;
mod environment;
mod error;
mod explain;
mod layers;
mod search;

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::document::{Document, Files};
use crate::options::{LoaderOptions, OptionInfo};

pub use error::{ConfigError, Location, UnknownKey};
pub use layers::{LayeredOptions, Origin};

/// The content of a config file. `D` is the type of the section `[dataset]`; by default a TOML table.
///
/// If `D` denies unknown fields (`#[serde(deny_unknown_fields)]`), a misspelt key is an error that names the
/// nearest known key, as in `[loader]`. A missing section is read as an empty one.
///
/// With `extends = "base.toml"` at its beginning, a config has all keys of another config, and overrides some of them:
/// tables are merged key by key, and other values are replaced. The path starts at the folder of the config, or at the
/// current directory for a text. The other config may extend another one, too. A config and the configs that it extends
/// may be at most 64 files, which have at most 16 MiB together.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Config<D = toml::Table> {
    /// The section `[dataset]`.
    pub dataset: D,
    /// The section `[loader]`.
    pub loader: LoaderOptions,
    #[serde(skip)]
    locations: BTreeMap<String, Location>,
}

/// Compares the sections, wherever their keys were set.
impl<D: PartialEq> PartialEq for Config<D> {
    fn eq(&self, other: &Self) -> bool {
        self.dataset == other.dataset && self.loader == other.loader
    }
}

impl<D> Config<D> {
    /// Returns the file and the line of a key, such as `loader.batch_size`; `None` if the config does not
    /// have it.
    ///
    /// # Examples
    /// ```
    /// use loader_core::config::Config;
    ///
    /// let config = Config::from_toml("[loader]\nseed = 7\n")?;
    /// assert_eq!(config.location("loader.seed").map(|location| location.line), Some(2));
    /// assert_eq!(config.location("loader.shuffle"), None);
    /// # Ok::<(), loader_core::config::ConfigError>(())
    /// ```
    pub fn location(&self, key: &str) -> Option<&Location> {
        self.locations.get(key)
    }

    /// Returns the folder of the file that has `key`, such as `dataset.path`. A relative path should start
    /// there, so that files and data can be moved together, as it does for the `loader` command. Returns an
    /// empty path, which stands for the current directory, if the config does not have the key, or was not
    /// read from a file.
    pub fn folder_of(&self, key: &str) -> &Path {
        let path = self.location(key).and_then(|location| location.path.as_deref()?.parent());
        path.unwrap_or(Path::new(""))
    }
}

impl Config {
    /// Reads a config from TOML, with the section `[dataset]` as a TOML table.
    ///
    /// # Errors
    /// [`ConfigError`] with the line, if the text is not TOML, a key is unknown or missing, or a value has
    /// the wrong type. Invalid values of the right type are errors of [`build`](crate::Builder::build)
    /// instead.
    ///
    /// # Examples
    /// ```
    /// use loader_core::config::Config;
    ///
    /// let config = Config::from_toml("[dataset]\npath = \"photos\"")?;
    /// assert_eq!(config.dataset["path"].as_str(), Some("photos"));
    ///
    /// let error = Config::from_toml("[loader]\nbatchsize = 64\n").unwrap_err();
    /// let message = "line 2: unknown key `batchsize` in [loader]; did you mean `batch_size`?";
    /// assert_eq!(error.to_string(), message);
    /// # Ok::<(), loader_core::config::ConfigError>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::from_toml_as(text)
    }

    /// As [`from_toml`](Self::from_toml), with the section `[dataset]` as a `D`.
    ///
    /// # Errors
    /// The errors of [`from_toml`](Self::from_toml).
    pub fn from_toml_as<D: DeserializeOwned>(text: &str) -> Result<Config<D>, ConfigError> {
        Config::read(&Files::of_text(text)?)
    }

    /// Reads a config from the file at `path`, with the section `[dataset]` as a TOML table.
    ///
    /// # Errors
    /// The errors of [`from_toml`](Self::from_toml), with the path, [`ConfigError::Unreadable`],
    /// [`ConfigError::TooLarge`], [`ConfigError::ExtendsCycle`] and [`ConfigError::TooManyExtended`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::load_as(path)
    }

    /// As [`load`](Self::load), with the section `[dataset]` as a `D`.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn load_as<D: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Config<D>, ConfigError> {
        Config::read(&Files::load(path.as_ref())?)
    }
}

impl<D: DeserializeOwned> Config<D> {
    fn read(files: &Files) -> Result<Self, ConfigError> {
        let document = &Document::parse(files)?;
        let root = toml::Spanned::new(0..0, document.table.clone());
        let Sections { dataset, loader } = Sections::deserialize(toml::Deserializer::from(root))
            .map_err(|error| explain::explain(&error, document, read_again::<D>))?;
        let dataset = match dataset {
            Some(dataset) => dataset,
            None => D::deserialize(toml::Table::new())
                .map_err(|error| explain::explain_absent(&error, "dataset", document))?,
        };
        Ok(Self { dataset, loader, locations: document.locations() })
    }
}

/// Returns the message of the error that reading a config gives.
fn read_again<D: DeserializeOwned>(table: toml::Table) -> Option<String> {
    Sections::<D>::deserialize(table).err().map(|error| error.message().to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections<D> {
    dataset: Option<D>,
    #[serde(default)]
    loader: LoaderOptions,
}

/// The keys in `[loader]`.
fn option_names() -> impl Iterator<Item = &'static str> {
    OptionInfo::ALL.iter().map(OptionInfo::name)
}

/// Returns the candidate that is most similar to `name`, if its Jaro similarity (0 to 1, where 1 is equal) is
/// at least `min`.
fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>, min: f64) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|candidate| (strsim::jaro(name, candidate), candidate));
    let best = scored.filter(|(score, _)| *score >= min).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, time::Duration};

    use super::*;
    use crate::{
        LauncherMode, NumWorkers, OnBadSample, OnWorkerDeath, OptionKind, Order, PrefetchFactor,
        WorkerAffinity,
    };

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Photos {
        kind: Kind,
        path: PathBuf,
        size: Option<u32>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Kind {
        ImageFolder,
    }

    fn photos(text: &str) -> Result<Config<Photos>, ConfigError> {
        Config::from_toml_as(text)
    }

    fn message(text: &str) -> String {
        photos(text).unwrap_err().to_string()
    }

    const DATASET: &str = "[dataset]\nkind = \"image-folder\"\npath = \"photos\"\n";

    /// Options in which each option is set, to another value than its default.
    pub(super) fn every_option() -> LoaderOptions {
        LoaderOptions {
            batch_size: Some(64),
            shuffle: Some(true),
            seed: Some(u64::MAX >> 1),
            order: Some(Order::Torch),
            rank: Some(1),
            world_size: Some(4),
            group_size: Some(2),
            launcher: Some(LauncherMode::Off),
            drop_last: Some(true),
            num_workers: Some(NumWorkers::auto()),
            prefetch_factor: Some(PrefetchFactor::Fixed(3)),
            in_order: Some(false),
            warn_after: Some(Duration::from_secs(5)),
            persistent_workers: Some(true),
            timeout: Some(Duration::from_secs(30)),
            shards: Some(6),
            steps_per_epoch: Some(100),
            pin_memory: Some(true),
            memory_limit: Some(3_000_000),
            shared_memory_limit: Some(1_000_000),
            on_worker_death: Some(OnWorkerDeath::Fail),
            max_worker_deaths: Some(5),
            on_bad_sample: Some(OnBadSample::Skip),
            max_bad_samples: Some(100),
            digest: Some(true),
            sample_timeout: Some(Duration::from_millis(2500)),
            worker_affinity: Some(WorkerAffinity::Spread),
            worker_memory_limit: Some(2_000_000),
            trace: Some("trace.json".into()),
            trace_on_failure: Some("failed.json".into()),
            metrics: Some(([127, 0, 0, 1], 9100).into()),
            move_tasks: Some(false),
            hedge: Some(true),
            raise_oom_score_adj: Some(false),
        }
    }

    #[test]
    fn a_file_can_set_every_option() {
        let loader: String = OptionInfo::ALL
            .iter()
            .map(|option| {
                let value = option.get(&every_option()).expect("it is set");
                let is_name = value.starts_with(char::is_alphabetic) && option.kind() != OptionKind::Switch
                    || option.kind() == OptionKind::Address;
                let quote = if is_name { "\"" } else { "" };
                format!("{} = {quote}{value}{quote}\n", option.name())
            })
            .collect();
        let config = photos(&format!("{DATASET}[loader]\n{loader}")).unwrap();
        assert_eq!(config.dataset, Photos { kind: Kind::ImageFolder, path: "photos".into(), size: None });
        assert_eq!(config.loader, every_option());
        assert_eq!(photos(DATASET).unwrap().loader, LoaderOptions::default());
        // Options that are written and read again are equal.
        let text = toml::to_string(&every_option()).unwrap();
        assert_eq!(toml::from_str::<LoaderOptions>(&text).unwrap(), every_option());
    }

    #[test]
    fn the_dataset_section_may_be_any_table() {
        let config = Config::from_toml(DATASET).unwrap();
        assert_eq!(config.dataset["path"].as_str(), Some("photos"));
        assert_eq!(Config::from_toml("").unwrap(), Config::default());
        // A config that is written and read again is equal.
        let text = toml::to_string(&config).unwrap();
        assert_eq!(Config::from_toml(&text).unwrap(), config);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let cases = [
            (
                "[loader]\nseed = 1\nbatchsize = 2\n",
                "line 6: unknown key `batchsize` in [loader]; did you mean `batch_size`?",
            ),
            (
                "[loader]\nworkers = 2\n",
                "line 5: unknown key `workers` in [loader]; did you mean `num_workers`?",
            ),
            ("sise = 3\n", "line 4: unknown key `sise` in [dataset]; did you mean `size`?"),
            ("[loadr]\nseed = 1\n", "line 4: unknown section [loadr]; did you mean [loader]?"),
            ("[x.y]\nseed = 1\n", "line 4: unknown section [x]; expected one of [dataset], [loader]"),
        ];
        for (text, expected) in cases {
            assert_eq!(message(&format!("{DATASET}{text}")), expected);
        }
        let forgotten_section = message("batch_size = 2\n");
        assert_eq!(forgotten_section, "line 1: unknown key `batch_size`; did you mean `loader.batch_size`?");
        let nothing_like_it = message(&format!("{DATASET}colour = 1\n"));
        assert_eq!(
            nothing_like_it,
            "line 4: unknown key `colour` in [dataset]; expected one of `kind`, `path`, `size`"
        );
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(tag = "kind", rename_all = "kebab-case")]
    enum Tagged {
        Lines(Lines),
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lines {
        path: PathBuf,
        #[serde(default)]
        cache: Option<Cache>,
        #[serde(default)]
        more: Vec<Cache>,
        #[serde(default)]
        count: u32,
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cache {
        folder: PathBuf,
        #[serde(default)]
        max_files: u8,
    }

    #[test]
    fn an_error_in_a_tagged_enum_has_its_line() {
        let message = |keys: &str| {
            let text = format!("[dataset]\nkind = \"lines\"\n{keys}");
            Config::from_toml_as::<Tagged>(&text).unwrap_err().to_string()
        };
        let unknown = message("path = \"a\"\npth = 1\n");
        assert_eq!(unknown, "line 4: unknown key `pth` in [dataset]; did you mean `path`?");
        let inside = message("path = \"a\"\n[dataset.cache]\nfolder = \"b\"\npath = 1\n");
        assert_eq!(
            inside,
            "line 6: unknown key `path` in [dataset.cache]; expected one of `folder`, `max_files`"
        );
        let in_array =
            message("path = \"a\"\n[[dataset.more]]\nfolder = \"b\"\n[[dataset.more]]\nfoldr = 1\n");
        assert_eq!(in_array, "line 7: unknown key `foldr` in [dataset.more]; did you mean `folder`?");
        assert_eq!(message(""), "line 1: `path` is missing in [dataset]");
        let missing =
            message("path = \"a\"\n[[dataset.more]]\nfolder = \"b\"\n[[dataset.more]]\nmax_files = 1\n");
        assert_eq!(missing, "line 6: `folder` is missing in [dataset.more]");
        for (keys, expected) in [
            ("path = 3\ncount = 3\n", "line 3: `path` in [dataset]: expected a path, found integer `3`"),
            (
                "path = \"lines\"\ncount = -1\n",
                "line 4: `count` in [dataset]: expected a whole number from 0, found integer `-1`",
            ),
            (
                "count = 256\npath = \"a\"\n[[dataset.more]]\nfolder = \"b\"\nmax_files = 256\n",
                "line 7: `max_files` in [dataset.more]: expected a whole number from 0, found integer `256`",
            ),
            (
                "path = \"a\"\ncache = 3\n",
                "line 4: `cache` in [dataset]: expected a section, found integer `3`",
            ),
        ] {
            assert_eq!(message(keys), expected);
        }
        let text = "[dataset]\nkind = \"line\"\npath = \"lines\"\n";
        let kind = Config::from_toml_as::<Tagged>(text).unwrap_err().to_string();
        assert_eq!(kind, "line 2: `kind` in [dataset]: unknown value `line`; did you mean `lines`?");
    }

    #[test]
    fn an_unknown_key_lists_all_options() {
        let error = Config::from_toml("[loader]\nxyz = 1").unwrap_err();
        let ConfigError::UnknownKey(unknown) = error else { panic!("{error:?}") };
        assert!(option_names().eq(unknown.known), "the names are the keys of the file");
        assert_eq!(unknown.nearest, None);
    }

    #[test]
    fn a_wrong_value_says_what_was_expected_and_found() {
        let cases = [
            (
                "batch_size = \"64\"",
                "`batch_size` in [loader]: expected a whole number from 0, found string \"64\"",
            ),
            (
                "batch_size = 1.5",
                "`batch_size` in [loader]: expected a whole number from 0, found floating point `1.5`",
            ),
            ("seed = -1", "`seed` in [loader]: expected a whole number from 0, found integer `-1`"),
            ("shuffle = 1", "`shuffle` in [loader]: expected true or false, found integer `1`"),
            (
                "timeout = -1",
                "`timeout` in [loader]: expected a number of seconds from 0, optionally with a unit \
                 (us, ms, s, min or h), found integer `-1`",
            ),
            (
                "warn_after = inf",
                "`warn_after` in [loader]: expected a number of seconds from 0, optionally with a unit \
                 (us, ms, s, min or h), found floating point `inf`",
            ),
            (
                "memory_limit = \"2 G\"",
                "`memory_limit` in [loader]: expected a number of bytes, optionally with a unit (B, kB, MB, GB, \
                 TB, KiB, MiB, GiB or TiB), found string \"2 G\"",
            ),
            (
                "num_workers = \"many\"",
                "`num_workers` in [loader]: expected a number of workers, \"auto\" or { auto = { min = 1, max = 8 } }, found string \"many\"",
            ),
            (
                "num_workers = -1",
                "`num_workers` in [loader]: expected a number of workers, \"auto\" or { auto = { min = 1, max = 8 } }, found integer `-1`",
            ),
            ("order = \"pytorch\"", "`order` in [loader]: unknown value `pytorch`; did you mean `torch`?"),
            ("[loader.seed]", "`seed` in [loader]: expected a whole number from 0, found a table"),
            ("seed = { a = 1 }", "`seed` in [loader]: expected a whole number from 0, found a table"),
        ];
        for (text, expected) in cases {
            assert_eq!(message(&format!("[loader]\n{text}\n")), format!("line 2: {expected}"));
        }
        assert_eq!(message("\nloader = 3\n"), "line 2: `loader`: expected a section, found integer `3`");
        assert_eq!(
            message("[dataset]\nkind = \"image-foldr\"\n"),
            "line 2: `kind` in [dataset]: unknown value `image-foldr`; did you mean `image-folder`?"
        );
    }

    #[test]
    fn a_missing_key_is_named() {
        let in_section = message("\n[dataset]\nkind = \"image-folder\"\n");
        assert_eq!(in_section, "line 2: `path` is missing in [dataset]");
        assert_eq!(message("[loader]\n"), "line 1: `kind` is missing in [dataset]");
    }

    #[test]
    fn an_error_of_the_toml_syntax_names_the_line() {
        let error = message("[loader]\nbatch_size =\n");
        assert!(error.starts_with("line 2: not TOML: "), "{error}");
        let twice = message("[loader]\nseed = 1\nseed = 2\n");
        assert_eq!(twice, "line 3: not TOML: duplicate key `seed`");
    }

    #[test]
    fn errors_name_the_file() {
        let path = std::env::temp_dir().join(format!("loader-config-{}.toml", std::process::id()));
        let error = Config::load(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: cannot be read: ", path.display())), "{error}");

        fs::write(&path, "\n[loader]\nsed = 1\n").unwrap();
        let error = Config::load(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        let expected = "line 3: unknown key `sed` in [loader]; did you mean `seed`?";
        assert_eq!(error, format!("{}, {expected}", path.display()));
    }

    /// Writes `files` into a new folder, and reads the first of them.
    fn load(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Config, ConfigError>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let config = Config::load(folder.path().join(files[0].0));
        (folder, config)
    }

    #[test]
    fn a_config_extends_others() {
        let (folder, config) = load(&[
            (
                "runs/a.toml",
                "extends = \"../b.toml\"\n[loader]\nseed = 1\n[dataset]\nstore.retries = 1\nnames = [3]\n",
            ),
            ("b.toml", "extends = \"more/c.toml\"\nloader.seed = 2\nloader.batch_size = 2\n"),
            (
                "more/c.toml",
                "dataset = { path = \"c\", store = { retries = 3, region = \"x\" }, names = [1, 2] }\n\
                 [loader]\nbatch_size = 3\nshuffle = true\n",
            ),
        ]);
        let config = config.unwrap();
        assert_eq!(config.loader, LoaderOptions::default().seed(1).batch_size(2).shuffle(true));
        let dataset = "path = \"c\"\nnames = [3]\nstore = { retries = 1, region = \"x\" }\n";
        assert_eq!(config.dataset, toml::from_str::<toml::Table>(dataset).unwrap());
        for (key, file, line) in [
            ("loader.seed", "runs/a.toml", 3),
            ("loader.batch_size", "runs/../b.toml", 3),
            ("loader.shuffle", "runs/../more/c.toml", 4),
            ("dataset.store.retries", "runs/a.toml", 5),
            ("dataset.store.region", "runs/../more/c.toml", 1),
        ] {
            let path = folder.path().join(file);
            assert_eq!(config.folder_of(key), path.parent().unwrap(), "{key}");
            assert_eq!(config.location(key), Some(&Location { path: Some(path), line }), "{key}");
        }
        assert_eq!(config.location("extends"), None);
    }

    #[test]
    fn a_config_without_an_end_is_refused_and_a_pipe_is_read() {
        let (folder, config) = load(&[("a.toml", "extends = \"/dev/zero\"\n")]);
        let a = folder.path().join("a.toml");
        let limit = "is too large: a config and the configs that it extends may have at most 16 MiB together; check the path, \
                     or shorten them";
        let expected = format!("/dev/zero: {limit}; {} extends /dev/zero", a.display());
        assert_eq!(config.unwrap_err().to_string(), expected);
        assert_eq!(Config::load("/dev/zero").unwrap_err().to_string(), format!("/dev/zero: {limit}"));
        // Each of them is small enough.
        let half = "#".repeat(9 << 20);
        let (folder, config) =
            load(&[("a.toml", &format!("extends = \"b.toml\"\n{half}")), ("b.toml", &half)]);
        let b = folder.path().join("b.toml");
        assert!(matches!(config, Err(ConfigError::TooLarge { path, .. }) if path == b));

        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&pipe, "loader.seed = 1\n").unwrap());
            assert_eq!(Config::load(&pipe).unwrap().loader, LoaderOptions::default().seed(1));
        });
    }

    #[test]
    fn a_config_without_workers_drops_the_options_of_workers_that_it_extends() {
        let base = ("b.toml", "[loader]\nnum_workers = 4\ntimeout = 3\nseed = 1\n");
        let (_folder, config) =
            load(&[("a.toml", "extends = \"b.toml\"\n[loader]\nnum_workers = 0\n"), base]);
        assert_eq!(config.unwrap().loader, LoaderOptions::default().num_workers(0).seed(1));
    }

    #[test]
    fn an_error_names_the_file_that_a_config_extends() {
        let extends = |name: &str| format!("\nextends = \"{name}\"\n");
        let refusal = |files: &[(&str, &str)]| {
            let (folder, config) = load(files);
            let prefix = format!("{}/", folder.path().display());
            config.unwrap_err().to_string().replace(&prefix, "")
        };
        let (to_b, to_c, to_a) = (extends("b.toml"), extends("c.toml"), extends("./a.toml"));
        let wrong = refusal(&[("a.toml", &to_b), ("b.toml", "[loader]\n\nsed = 1\n")]);
        assert_eq!(wrong, "b.toml, line 3: unknown key `sed` in [loader]; did you mean `seed`?");
        let syntax = refusal(&[("a.toml", &to_b), ("b.toml", "[loader]\nseed = 1\nseed = 2\n")]);
        assert_eq!(syntax, "b.toml, line 3: not TOML: duplicate key `seed`");
        let missing = refusal(&[("a.toml", &to_b), ("b.toml", &to_c)]);
        assert_eq!(
            missing,
            "c.toml: cannot be read: No such file or directory (os error 2); a.toml extends b.toml, which extends c.toml"
        );
        let cycle = refusal(&[("a.toml", &to_b), ("b.toml", &to_a)]);
        assert_eq!(
            cycle,
            "configs extend each other in a cycle: a.toml extends b.toml, which extends ./a.toml; remove one `extends`"
        );
        let itself = refusal(&[("a.toml", &extends("a.toml"))]);
        assert!(itself.contains("a cycle: a.toml extends a.toml;"), "{itself}");
        let names: Vec<_> = (0..65).map(|number| format!("{number}.toml")).collect();
        let texts: Vec<_> = (1..66).map(|number| format!("\nextends = \"{number}.toml\"\n")).collect();
        let mut many: Vec<_> =
            names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let too_many = refusal(&many);
        assert_eq!(
            too_many,
            "63.toml, line 2: `extends` is one too many: a config may be made of 64 files; merge some of them"
        );
        many[63].1 = "";
        assert!(load(&many).1.is_ok());
        let list = refusal(&[("a.toml", "\nextends = [\"b.toml\"]\n")]);
        assert_eq!(list, "a.toml, line 2: `extends`: expected a path, found array");
        let misspelt = refusal(&[("a.toml", "extend = \"b.toml\"\n")]);
        assert_eq!(misspelt, "a.toml, line 1: unknown key `extend`; did you mean `extends`?");
    }

    #[test]
    fn seconds_become_durations() {
        let timeout =
            |text: &str| photos(&format!("{DATASET}[loader]\ntimeout = {text}")).unwrap().loader.timeout;
        assert_eq!(timeout("2.5"), Some(Duration::from_millis(2500)));
        assert_eq!(timeout("-0.0"), Some(Duration::ZERO));
        assert_eq!(timeout("1e-12"), Some(Duration::from_nanos(1)), "zero would be no limit");
        assert_eq!(timeout("1e300"), Some(Duration::MAX));
        assert_eq!(timeout("30"), Some(Duration::from_secs(30)));
    }

    #[test]
    fn sizes_and_times_may_have_units() {
        let options =
            Config::from_toml("[loader]\nmemory_limit = \"2 GiB\"\ntimeout = \"250 ms\"\n").unwrap();
        let expected = LoaderOptions::default().memory_limit(2 << 30).timeout(Duration::from_millis(250));
        assert_eq!(options.loader, expected);
    }

    #[test]
    fn upper_layers_override_lower_ones() {
        let options = |text: &str| toml::from_str::<LoaderOptions>(text).unwrap();
        let file = options("batch_size = 1\nseed = 1\nnum_workers = 1\ntimeout = 1\nprefetch_factor = 3");
        let environment = options("seed = 2\nnum_workers = 2");
        let command_line = options("num_workers = 3");
        let layered = command_line.over(environment).over(file.clone());
        assert_eq!(
            layered,
            options("batch_size = 1\nseed = 2\nnum_workers = 3\ntimeout = 1\nprefetch_factor = 3")
        );

        // The origins follow the layers.
        let config = Config::from_toml("[loader]\nnum_workers = 1\ntimeout = 1\nbatch_size = 1\n").unwrap();
        let origins = |upper: LoaderOptions| {
            let layered = LayeredOptions::new(&config).under_command_line(upper);
            let origin = |option: &OptionInfo| Some((option.name(), layered.origin(option)?.to_string()));
            OptionInfo::ALL.iter().filter_map(origin).collect::<Vec<_>>()
        };
        let line = |line| format!("line {line}");
        assert_eq!(
            origins(LoaderOptions::default().batch_size(2)),
            [("batch_size", "command line".to_owned()), ("num_workers", line(2)), ("timeout", line(3))]
        );
        assert_eq!(
            origins(LoaderOptions::default().num_workers(0)),
            [("batch_size", line(4)), ("num_workers", "command line".to_owned())]
        );

        // A layer that switches workers off drops the options of lower layers that need workers.
        let without = options("num_workers = 0").over(file);
        assert_eq!(without, options("batch_size = 1\nseed = 1\nnum_workers = 0"));
        let without = options("num_workers = 0").over(every_option());
        for option in OptionInfo::ALL {
            assert_eq!(option.get(&without).is_none(), option.needs_workers(), "{}", option.name());
        }
    }
}
