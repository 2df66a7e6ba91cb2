//! The lines below the progress bar: the figures of the epoch, what each worker is doing, and the bottleneck
//! so far.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use console::Term;
use loader_core::{StatsReader, WorkerState, WorkerStats};

/// With more workers, their states are counted instead of listed.
const MAX_LISTED: usize = 8;
/// Maximum number of other lines: the bar, the figures, and the bottleneck.
const OTHER_LINES: usize = 5;

/// If no batch has arrived for this long, that is shown.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// What is shown below the bar. Another thread draws it, so that it stays true while the run waits for a
/// batch. Clones refer to the same view.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerView(Arc<Mutex<View>>);

#[derive(Debug, Default)]
struct View {
    reader: Option<StatsReader>,
    /// Number of times that each worker was replaced in the run.
    restarts: BTreeMap<usize, u64>,
    /// When main updated the view last, which it does after a batch.
    updated: Option<Instant>,
    /// Figures of the epoch so far.
    figures: String,
    /// The bottleneck so far; empty with too few batches to tell.
    advice: String,
}

impl WorkerView {
    /// Begins to show the workers of a loader.
    pub(crate) fn watch(&self, reader: StatsReader) {
        self.lock().reader = Some(reader);
    }

    /// Begins an epoch.
    pub(crate) fn begin(&self) {
        self.update(String::new(), String::new());
    }

    /// Updates what main knows.
    pub(crate) fn update(&self, figures: String, advice: String) {
        let mut view = self.lock();
        (view.figures, view.advice) = (figures, advice);
        view.updated = Some(Instant::now());
    }

    /// Notes that the process of a worker was replaced.
    pub(crate) fn note_restart(&self, worker: usize) {
        *self.lock().restarts.entry(worker).or_default() += 1;
    }

    /// Writes the lines, which fit standard error's terminal, without a line break at the end.
    pub(crate) fn draw(&self, out: &mut dyn Write) {
        let (rows, columns) = Term::stderr().size();
        let lines = self.lock().lines(rows.into(), columns.into());
        // Writing to a `String` does not fail.
        out.write_str(&lines.join("\n")).ok();
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn lines(&self, rows: usize, columns: usize) -> Vec<String> {
        // A terminal moves to the next line when its last column is filled.
        let width = columns.saturating_sub(1);
        let workers = self.reader.as_ref().map(|reader| reader.read().workers).unwrap_or_default();
        let mut lines = vec![self.figures_line()];
        if workers.len() <= MAX_LISTED.min(rows.saturating_sub(OTHER_LINES)) {
            lines.extend(workers.iter().enumerate().map(|(number, worker)| self.listed(number, worker)));
        } else {
            lines.extend(self.counted(&workers));
        }
        lines.retain(|line| !line.is_empty());
        let mut lines: Vec<_> = lines.into_iter().map(|line| line.chars().take(width).collect()).collect();
        lines.extend(wrapped(&self.advice, width).into_iter().take(3));
        lines
    }

    /// Returns the figures, and the time since the last batch if it is long.
    fn figures_line(&self) -> String {
        let waiting = self.updated.map(|updated| updated.elapsed()).filter(|waiting| *waiting > LONG_WAIT);
        let waiting = waiting.map(|waiting| format!("no batch for {:.1} s", waiting.as_secs_f64()));
        let parts = [Some(self.figures.clone()).filter(|figures| !figures.is_empty()), waiting];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn listed(&self, number: usize, worker: &WorkerStats) -> String {
        let restarts = match self.restarts.get(&number) {
            None => String::new(),
            Some(1) => ", restarted once".to_owned(),
            Some(times) => format!(", restarted {times} times"),
        };
        format!("worker {number}: {}{restarts}", Doing(worker))
    }

    /// Returns one line for many workers, and one for the worker that has been on its sample for the longest time.
    fn counted(&self, workers: &[WorkerStats]) -> Vec<String> {
        let mut counts = BTreeMap::<_, usize>::new();
        for worker in workers {
            let is_fetching = matches!(worker.state, WorkerState::Fetching | WorkerState::FetchingMany);
            let state = if is_fetching { WorkerState::Fetching } else { worker.state };
            *counts.entry(state.to_string()).or_default() += 1;
        }
        let counts: Vec<_> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let mut line = format!("{} workers: {}", workers.len(), counts.join(", "));
        let restarts: u64 = self.restarts.values().sum();
        if restarts > 0 {
            line += &format!("; {restarts} restarts");
        }
        let at_work = workers.iter().enumerate().filter(|(_, worker)| worker.state != WorkerState::Idle);
        let longest = at_work.max_by_key(|(_, worker)| worker.age);
        let longest = longest.map(|(number, worker)| format!("longest: {}", self.listed(number, worker)));
        [Some(line), longest].into_iter().flatten().collect()
    }
}

/// Shows what a worker is doing.
struct Doing<'a>(&'a WorkerStats);

impl fmt::Display for Doing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerStats { state, index, batch, age, .. } = self.0;
        match state {
            WorkerState::Fetching => write!(f, "fetching sample {index}")?,
            WorkerState::FetchingMany => write!(f, "fetching the samples of batch {batch}")?,
            WorkerState::Collating | WorkerState::Sending => write!(f, "{state} batch {batch}")?,
            _ => write!(f, "{state}")?,
        }
        write!(f, " for {:.1} s", age.as_secs_f64())
    }
}

/// Breaks a text into lines of at most `width` characters, at spaces.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.chars().take(width).collect()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces() {
        assert_eq!(wrapped("", 10), Vec::<String>::new());
        assert_eq!(wrapped("the workers were busy", 11), ["the workers", "were busy"]);
        assert_eq!(wrapped("unbreakable text", 5), ["unbre", "text"]);
    }
}
