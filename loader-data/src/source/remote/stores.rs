//! Makes the clients of stores.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use object_store::{
    BackoffConfig, ObjectStore, Result, RetryConfig, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder, http::HttpBuilder,
};

use super::{
    super::{StoreOptions, shown},
    address::{Address, Scheme},
    client::Connector,
    problem, profile,
};
use crate::error::DataProblem;

/// The stores that this process uses. One per bucket, so that credentials are fetched once.
pub(super) struct Stores {
    options: StoreOptions,
    connector: Connector,
    made: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl Stores {
    pub(super) fn new(options: StoreOptions) -> Result<Self, DataProblem> {
        if options.endpoint.as_ref().is_some_and(|endpoint| shown(endpoint) != *endpoint) {
            let text =
                "a user name, password or query in `endpoint`; use the standard locations of credentials";
            return Err(DataProblem::Unsupported(text.to_owned()));
        }
        let connector = Connector::new(&options)?;
        Ok(Self { options, connector, made: Mutex::default() })
    }

    /// Returns the store of `address`.
    pub(super) fn get(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, DataProblem> {
        if address.scheme == Scheme::Http {
            return self.http(address);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = made.get(&address.root) {
            return Ok(Arc::clone(store));
        }
        let store = match address.scheme {
            Scheme::S3 => self.s3(address)?,
            Scheme::Google => self.google(address).map_err(|error| problem::of_options(&error))?,
            _ => self.azure(address).map_err(|error| problem::of_options(&error))?,
        };
        made.insert(address.root.clone(), Arc::clone(&store));
        Ok(store)
    }

    /// Retries end with the deadline of the request.
    fn retries(&self) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100).min(self.options.timeout / 20),
            max_backoff: self.options.timeout / 4,
            base: 2.0,
        };
        RetryConfig { backoff, max_retries: self.options.max_retries, retry_timeout: self.options.timeout }
    }

    fn check_encrypted(&self, url: &str) -> Result<(), DataProblem> {
        if url.starts_with("http://") && !self.options.allow_http {
            let text =
                "the server is addressed by http://, without encryption; use https:// or set `allow_http`";
            return Err(DataProblem::Store(text.to_owned()));
        }
        Ok(())
    }

    /// An HTTP server's store has one object, whose URL is taken as it is, with its query.
    fn http(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, DataProblem> {
        self.check_encrypted(&address.root)?;
        let store = HttpBuilder::new()
            .with_url(&address.root)
            .with_http_connector(self.connector.clone())
            .with_retry(self.retries())
            .build()
            .map_err(|_| DataProblem::Pattern("the URL is not valid".to_owned()))?;
        Ok(Arc::new(store))
    }

    fn s3(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, DataProblem> {
        let bucket = address.root.rsplit('/').next().unwrap_or_default();
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_http_connector(self.connector.clone())
            .with_retry(self.retries())
            .with_skip_signature(self.options.skip_signature);
        if let Some(endpoint) = &self.options.endpoint {
            self.check_encrypted(endpoint)?;
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.options.region {
            builder = builder.with_region(region);
        }
        if !self.options.skip_signature && !has_variable(&PROVIDERS) {
            builder = match profile::read()? {
                Some(profile) => profile.apply(builder, self.options.region.is_none()),
                None if has_metadata_server() => builder,
                None => return Err(DataProblem::NoCredentials),
            };
        }
        Ok(Arc::new(builder.build().map_err(|error| problem::of_options(&error))?))
    }

    fn google(&self, address: &Address) -> Result<Arc<dyn ObjectStore>> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_url(&address.root)
            .with_http_connector(self.connector.clone())
            .with_retry(self.retries())
            .with_skip_signature(self.options.skip_signature);
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_base_url(endpoint);
        }
        Ok(Arc::new(builder.build()?))
    }

    fn azure(&self, address: &Address) -> Result<Arc<dyn ObjectStore>> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_url(&address.root)
            .with_http_connector(self.connector.clone())
            .with_retry(self.retries())
            .with_skip_signature(self.options.skip_signature);
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        Ok(Arc::new(builder.build()?))
    }
}

/// Environment variables that name a source of S3 credentials other than a profile and the metadata server.
const PROVIDERS: [&str; 6] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
];

fn has_variable(names: &[&str]) -> bool {
    names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// True if this machine has Amazon's metadata server. Without this check, a machine outside of Amazon's
/// network would use up the deadline before it said that there are no credentials.
fn has_metadata_server() -> bool {
    let disabled = std::env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value == "true");
    let address = SocketAddr::from(([169, 254, 169, 254], 80));
    !disabled && TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
