//! The HTTP client that all stores of a process share.

use std::{
    cell::RefCell,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;

use super::{super::StoreOptions, problem};
use crate::error::DataProblem;

tokio::task_local! {
    /// What came of the last try of the current request. The errors of object_store do not have it, and a
    /// request that ends at its deadline has no error.
    pub(super) static LAST: RefCell<Last>;
}

/// What came of a try.
#[derive(Debug, Clone)]
pub(super) enum Last {
    /// A response with this status, of the server with this host and port.
    Status { status: u16, server: String },
    /// A part of a file, from a server that does not say how many bytes the file has.
    NoLength,
    /// No connection, for this reason.
    NoConnection(String),
    /// Something else, or there was no try yet.
    Other,
}

/// Gives stores the HTTP client.
#[derive(Debug, Clone)]
pub(super) struct Connector(HttpClient);

impl Connector {
    pub(super) fn new(options: &StoreOptions) -> Result<Self, DataProblem> {
        let client = Mutex::new((std::process::id(), client(options)?));
        Ok(Self(HttpClient::new(Watched { options: options.clone(), client })))
    }
}

fn client(options: &StoreOptions) -> Result<reqwest::Client, DataProblem> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls(options)?)
        .https_only(!options.allow_http)
        // Ranges that are read at the same time get connections of their own.
        .http1_only()
        .connect_timeout(silence(options).min(Duration::from_secs(10)))
        .read_timeout(silence(options))
        .user_agent(concat!("loader-data/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| DataProblem::Store(format!("the HTTP client cannot be made: {error}")))
}

/// Max time without a byte from the server, after which the request is sent again.
fn silence(options: &StoreOptions) -> Duration {
    options.timeout / 4
}

fn tls(options: &StoreOptions) -> Result<ClientConfig, DataProblem> {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| DataProblem::Store(format!("TLS: {error}")))
    };
    match builder()?.with_platform_verifier() {
        Ok(builder) => Ok(builder.with_no_client_auth()),
        // A slim container has no certificates, and needs none for a server without encryption.
        Err(_) if options.allow_http => {
            Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
        }
        Err(error) => Err(DataProblem::Store(format!(
            "no root certificates ({error}); install the package ca-certificates, or set SSL_CERT_FILE"
        ))),
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// A client that notes what comes of each try.
#[derive(Debug)]
struct Watched {
    options: StoreOptions,
    /// The client, and the process that has made it.
    client: Mutex<(u32, reqwest::Client)>,
}

impl Watched {
    /// Returns the client of this process. Makes one if the process is a fork of the one that made the last
    /// one: the thread that served the open connections of that client is not in the fork.
    fn client(&self) -> Result<reqwest::Client, HttpError> {
        let mut made = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if made.0 != process {
            let client = client(&self.options);
            let client = client.map_err(|problem| HttpError::new(HttpErrorKind::Unknown, problem))?;
            // Dropping it could wait for a lock that the other thread held.
            mem::forget(mem::replace(&mut *made, (process, client)));
        }
        Ok(made.1.clone())
    }
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (host, port) = (request.uri().host().unwrap_or_default(), request.uri().port());
        let server = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let response = HttpService::call(&self.client()?, request).await;
        let noted = match &response {
            Ok(response) if is_without_length(response) => Last::NoLength,
            Ok(response) => Last::Status { status: response.status().as_u16(), server },
            Err(error) if error.kind() == HttpErrorKind::Connect => {
                Last::NoConnection(problem::cause(error).unwrap_or_default())
            }
            Err(_) => Last::Other,
        };
        // Outside of a scope there is no request of ours to note it for.
        drop(LAST.try_with(|last| last.replace(noted)));
        response
    }
}

/// True for a part of a file in a response that does not say how many bytes the part or the file has.
fn is_without_length(response: &HttpResponse) -> bool {
    let text = |name| response.headers().get(name)?.to_str().ok();
    let has_number = |text: &str| text.rsplit('/').next().is_some_and(|text| text.parse::<u64>().is_ok());
    let has_lengths =
        || ["content-range", "content-length"].into_iter().all(|name| text(name).is_some_and(has_number));
    response.status().as_u16() == 206 && !has_lengths()
}
