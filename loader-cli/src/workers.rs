//! Workers that come and go while a run goes on.

use std::{
    io, mem,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::Warning;

use crate::{events::Event, progress::Screen, reporter::Reporter};

/// What is known of the workers, and what the loader has said of them since it was told.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    warnings: Arc<Mutex<Vec<Warning>>>,
    pids: Vec<u32>,
}

impl Workers {
    /// What the loader calls with its warnings: prints them, and keeps those that are events.
    pub(crate) fn listener(&self, screen: Screen) -> impl Fn(&Warning) + Send + Sync + 'static {
        let warnings = Arc::clone(&self.warnings);
        move |warning| {
            screen.error_line(&format!("loader: warning: {warning}"));
            if let Warning::WorkerReplaced { .. } = warning {
                warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning.clone());
            }
        }
    }

    /// Notes the workers that the event `start` names.
    pub(crate) fn begin_with(&mut self, pids: Vec<u32>) {
        self.pids = pids;
    }

    /// Tells who has died since the last time, and who is there now.
    pub(crate) fn tell(&mut self, pids: Vec<u32>, reporter: &Reporter) -> io::Result<()> {
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
