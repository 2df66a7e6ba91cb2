//! What records the work of a loader.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    error::Error,
    launch::ranks::LaunchedRank,
    options::LoaderOptions,
    report::{metrics::MetricsServer, stats::SharedStats, trace::Tracer},
};

/// What records the work of a loader: statistics, trace, and the server of metrics. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Observers {
    pub(crate) stats: Arc<SharedStats>,
    pub(crate) tracer: Option<Tracer>,
    /// Serves the statistics until the last clone is dropped.
    pub(crate) metrics: Option<Arc<MetricsServer>>,
}

/// The observers of several loaders, each of which loads some epochs of one loader of the program. The loader that is
/// built first makes the observers, so its options count. The others add to the same statistics and the same trace.
///
/// Alternative considered: the host keeps one loader for all epochs. Rejected because the loader has the seed and the
/// dataset as they were when it was built, and PyTorch takes both anew for each iterator.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct SharedObservers(Arc<Mutex<Option<Observers>>>);

impl Observers {
    /// Makes the observers that the options ask for. `launched` is what a launcher says about the rank.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the file of a trace or the address of the metrics cannot be used.
    pub(crate) fn new(options: &LoaderOptions, launched: Option<&LaunchedRank>) -> Result<Self, Error> {
        let tracer = Tracer::new(options, launched)?;
        let stats = Arc::<SharedStats>::default();
        let metrics = options.metrics.map(|address| MetricsServer::start(address, Arc::clone(&stats)));
        Ok(Self { stats, tracer, metrics: metrics.transpose()?.map(Arc::new) })
    }
}

impl SharedObservers {
    /// Returns the address at which the metrics are served; `None` before a loader was built, and without the option.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()?.metrics.as_ref().map(|server| server.address())
    }

    /// Returns the observers. The first call makes them with `make`.
    pub(crate) fn get_or_make(
        &self,
        make: impl FnOnce() -> Result<Observers, Error>,
    ) -> Result<Observers, Error> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(observers) = &*held {
            return Ok(observers.clone());
        }
        let made = make()?;
        *held = Some(made.clone());
        Ok(made)
    }
}
