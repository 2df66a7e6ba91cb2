//! Options for files on servers. They exist without the feature `cloud` too, so that a config file has the
//! same keys.

use std::{cell::RefCell, path::PathBuf, time::Duration};

use loader_core::units::Time;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// How files are read from S3, Google Cloud Storage, Azure and HTTP servers.
///
/// The options have no credentials: each process reads these from its environment. `docs/data.md` lists the
/// locations.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use loader_data::StoreOptions;
///
/// let options: StoreOptions = serde_json::from_str(r#"{"endpoint": "https://minio:9000", "timeout": 20}"#)?;
/// assert_eq!(options.timeout, Duration::from_secs(20));
/// assert_eq!(options.max_retries, 10);
/// assert!(serde_json::from_str::<StoreOptions>(r#"{"endpiont": "https://minio:9000"}"#).is_err());
/// # anyhow::Ok(())
/// ```
///
/// Every format takes them through [`scope`](Self::scope).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// URL of the server, for a server that is compatible with S3 and is not Amazon's, such as
    /// `https://minio.example.com:9000`, without credentials. Also for Google Cloud Storage and Azure.
    /// Default: the provider's servers.
    pub endpoint: Option<String>,
    /// Region of the S3 bucket. Default: `AWS_REGION` or `AWS_DEFAULT_REGION`, otherwise `us-east-1`.
    pub region: Option<String>,
    /// Allows connections without encryption (`http://`). Default: false.
    pub allow_http: bool,
    /// Sends requests without credentials, for public buckets. Default: false.
    pub skip_signature: bool,
    /// Max time above 0 that a request may take with all its retries. A request asks for at most 8 MiB.
    /// Default: 60 s.
    #[serde(serialize_with = "Time::serialize", deserialize_with = "positive")]
    #[cfg_attr(feature = "schema", schemars(with = "Time"))]
    pub timeout: Duration,
    /// Maximum number of retries of a request. Default: 10.
    pub max_retries: usize,
    /// Keeps what was read in a folder. Default: nothing is kept.
    pub cache: Option<CacheOptions>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            allow_http: false,
            skip_signature: false,
            timeout: Duration::from_secs(60),
            max_retries: 10,
            cache: None,
        }
    }
}

thread_local! {
    /// The options of the scope that this thread is in.
    static SCOPE: RefCell<StoreOptions> = RefCell::default();
}

impl StoreOptions {
    /// Calls `open`, which opens datasets in this thread. These datasets keep the options, also in workers.
    ///
    /// # Examples
    /// ```no_run
    /// use loader_core::DType;
    /// use loader_data::{StoreOptions, Tokens};
    ///
    /// let options = StoreOptions { region: Some("eu-west-1".to_owned()), ..StoreOptions::default() };
    /// let open = || Tokens::<i64>::open("s3://corpus/train-{000..099}.bin", DType::U16, 1025);
    /// let tokens = options.scope(open)?;
    /// # anyhow::Ok(())
    /// ```
    pub fn scope<R>(&self, open: impl FnOnce() -> R) -> R {
        /// Restores the options when it is dropped, also after a panic.
        struct Restore(StoreOptions);

        impl Drop for Restore {
            fn drop(&mut self) {
                SCOPE.set(std::mem::take(&mut self.0));
            }
        }

        let _restore = Restore(SCOPE.replace(self.clone()));
        open()
    }

    /// Returns the folder of the cache with its key in the options of a dataset.
    #[cfg(any(feature = "formats", all(feature = "config", feature = "image-folder")))]
    pub(crate) fn path_mut(&mut self) -> Option<(String, &mut PathBuf)> {
        Some(("store.cache.folder".to_owned(), &mut self.cache.as_mut()?.folder))
    }

    /// Returns the options of the scope that this thread is in, otherwise the default.
    pub(crate) fn current() -> Self {
        SCOPE.with_borrow(Self::clone)
    }
}

/// A folder on a local disk that keeps blocks of remote files. All processes of a machine may share it.
///
/// It keeps blocks of 8 MiB. A process that needs a byte fetches the block, unless a block with the right
/// checksum is there; no two processes fetch the same block. When the folder is full, the blocks that were
/// not read for the longest time are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CacheOptions {
    /// The folder. It is created if it does not exist, and must be used for nothing else.
    pub folder: PathBuf,
    /// Maximum number of bytes of all blocks. At least 8 MiB.
    #[serde(with = "loader_core::units::Size")]
    pub max_bytes: u64,
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match Time::deserialize(deserializer)? {
        Duration::ZERO => Err(D::Error::custom("`timeout` is 0, which is not a positive number of seconds")),
        timeout => Ok(timeout),
    }
}
