//! Files on servers, through the crate object_store.

mod address;
mod cache;
mod client;
mod io;
mod list;
mod names;
mod object;
mod problem;
mod profile;
mod ranges;
mod stores;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use object_store::ObjectMeta;

use self::{address::Address, cache::Cache, object::Limits, stores::Stores};
use super::{DataFile, Location, StoreOptions};
use crate::error::{DataError, DataProblem, Result};

pub(super) use object::{Ahead, Object};

/// The servers that the files of a dataset lie on.
pub(super) struct Remote {
    stores: Stores,
    limits: Limits,
    endpoint: String,
    cache: Option<Arc<Cache>>,
}

impl Remote {
    pub(super) fn new(options: &StoreOptions) -> Result<Self, DataProblem> {
        let cache = options.cache.as_ref().map(Cache::new).transpose()?.map(Arc::new);
        Ok(Self {
            stores: Stores::new(options.clone())?,
            limits: Limits::new(options),
            endpoint: options.endpoint.clone().unwrap_or_default(),
            cache,
        })
    }

    /// Returns the file at `url`. No request is sent: each read checks that the file is the one that was
    /// listed.
    pub(super) fn open(&self, file: DataFile, url: &str) -> Result<Object> {
        let open = || -> Result<_, DataProblem> {
            let address = Address::parse(url)?;
            Ok((self.stores.get(&address)?, address.path()?))
        };
        let (store, path) = open().map_err(|problem| DataError::new(&file.location, problem))?;
        // A file without a version may change without a trace, so it is not kept.
        let cache = self.cache.clone().filter(|_| file.version != NO_VERSION);
        let identity = format!("{}\0{url}", self.endpoint).into();
        Ok(Object { store, path, file, limits: self.limits, identity, cache, ahead: None })
    }
}

impl fmt::Debug for Remote {
    /// The stores are not shown, because they have the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Begins the version of a file whose server sends ETags.
const ETAG: &str = "ETag ";

/// The version of a file whose server sends neither ETags nor times.
const NO_VERSION: &str = "no version";

impl DataFile {
    /// Describes a file on a server. Its version is the ETag, otherwise the time of the last modification.
    fn on_server(location: Location, meta: &ObjectMeta) -> Self {
        let version = match &meta.e_tag {
            // Azure lists ETags without the quotation marks that its answers have.
            Some(etag) if etag.ends_with('"') => format!("{ETAG}{etag}"),
            Some(etag) => format!("{ETAG}\"{etag}\""),
            None if meta.last_modified.timestamp() == 0 => NO_VERSION.to_owned(),
            None => format!("modified at {}", meta.last_modified.to_rfc3339()),
        };
        Self { location, len: meta.size, version, partition: Vec::new() }
    }

    /// The ETag, if the version is one.
    fn etag(&self) -> Option<&str> {
        self.version.strip_prefix(ETAG)
    }
}
