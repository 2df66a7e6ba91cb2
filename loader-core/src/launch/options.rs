//! The values of a loader's options on this machine.

use super::{
    affinity::{AffinityError, WorkerCpus},
    ranks::{self, LocalRanks, Variables},
};
use crate::options::{LoaderOptions, NumWorkers, default};

impl LoaderOptions {
    /// Returns the options that a loader built from these uses: defaults are filled in, also the maximum of
    /// [`NumWorkers::Auto`].
    ///
    /// `memory_limit` and `shared_memory_limit` stay `None` if they are not set, because their defaults
    /// depend on the machine. Without workers, options that need workers stay `None`. So do options that have
    /// no default value: `rank`, `world_size`, `launcher`, `shards`, `steps_per_epoch`, `worker_memory_limit`, `trace`,
    /// `trace_on_failure` and `metrics`.
    #[must_use]
    pub fn resolved(mut self) -> Self {
        let workers = match self.num_workers.unwrap_or_else(default::num_workers) {
            NumWorkers::Auto(auto) => NumWorkers::Auto(auto.max(auto.resolved_max(self.count_cpus()))),
            fixed @ NumWorkers::Fixed(_) => fixed,
        };
        self.num_workers = Some(workers);
        self.with_defaults(workers != NumWorkers::Fixed(0))
    }

    /// Returns the number of workers with which a loader built from these options begins.
    pub fn first_workers(&self) -> usize {
        match self.num_workers.unwrap_or_else(default::num_workers) {
            NumWorkers::Fixed(workers) => workers,
            NumWorkers::Auto(auto) => auto.first(self.count_cpus()),
        }
    }

    /// Returns the number of CPUs for the workers of a loader with these options. Of several processes of a
    /// launcher that inherit the CPUs of the machine, each has an equal part of them. `build()` reports an
    /// affinity that cannot be used.
    pub fn count_cpus(&self) -> usize {
        let variables = ranks::environment();
        let found = self.worker_cpus(&variables);
        found.unwrap_or_else(|_| WorkerCpus::inherited(self.local_ranks(&variables))).count()
    }

    /// Returns the number of the launcher's processes on this machine, which share its memory; 1 if it is not
    /// known.
    #[doc(hidden)]
    pub fn count_local_processes(&self) -> usize {
        self.local_ranks(&ranks::environment()).processes()
    }

    pub(crate) fn local_ranks(&self, variables: &Variables) -> LocalRanks {
        LocalRanks::find(self.launcher, variables)
    }

    /// Finds the CPUs of workers with these options.
    pub(crate) fn worker_cpus(&self, variables: &Variables) -> Result<WorkerCpus, AffinityError> {
        let affinity = self.worker_affinity.clone().unwrap_or_else(default::worker_affinity);
        WorkerCpus::find(&affinity, self.local_ranks(variables))
    }
}
