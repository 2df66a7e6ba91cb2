//! Reports workers that die and workers that start during a run.

use std::{
    io, mem,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::Warning;

use crate::{events::Event, page, reporter::Reporter};

/// The workers whose start was reported, and the deaths that were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// Warnings about workers that were replaced, to be printed as events.
    warnings: Arc<Mutex<Vec<Warning>>>,
    pids: Vec<u32>,
}

impl Workers {
    /// Returns the callback for warnings of the loader, which prints them and keeps those that become events.
    pub(crate) fn listener(&self, reporter: &Reporter) -> impl Fn(&Warning) + Send + Sync + 'static {
        let warnings = Arc::clone(&self.warnings);
        let (screen, view) = (reporter.screen(), reporter.view());
        move |warning| {
            screen.error_line(&format!("loader: warning: {warning}"));
            page::note_warning(warning);
            if let Warning::WorkerReplaced { worker, .. } = warning {
                view.note_restart(*worker);
                warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning.clone());
            }
        }
    }

    /// Notes the workers that the event `start` names.
    pub(crate) fn begin_with(&mut self, pids: Vec<u32>) {
        self.pids = pids;
    }

    /// Prints events for workers that have died since the last call, and for workers in `pids` that are new.
    pub(crate) fn report_changes(&mut self, pids: Vec<u32>, reporter: &Reporter) -> io::Result<()> {
        let warnings = mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner));
        for exited in warnings.iter().filter_map(Event::worker_replaced) {
            reporter.event(&exited)?;
        }
        if pids != self.pids {
            for (worker, &pid) in
                pids.iter().enumerate().filter(|&(worker, pid)| self.pids.get(worker) != Some(pid))
            {
                reporter.event(&Event::WorkerStarted { worker, pid })?;
            }
            self.pids = pids;
        }
        Ok(())
    }
}
