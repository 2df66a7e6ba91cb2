//! Starts real workers, and opens the GPU's driver.

use std::{
    env, fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use loader_core::{
    DataLoader, Error, LauncherMode, LoaderOptions, Tensor, TensorDataset, Warning, WorkerAffinity,
    WorkerStartError, internal::BuildId,
};

use super::{
    Plan,
    report::{Check, Status},
};
use crate::settings;

/// A worker that takes longer than this makes each epoch's start slow.
const SLOW_START: Duration = Duration::from_secs(1);

pub(super) fn checks(plan: &Plan) -> Vec<Check> {
    let mut checks = vec![program()];
    checks.extend(workers(plan));
    checks.extend(gpu(plan));
    checks
}

/// Which program main starts as a worker.
fn program() -> Check {
    const NAME: &str = "worker program";
    match env::var_os("LOADER_WORKER") {
        None => {
            let program =
                env::current_exe().map_or_else(|_| "this program".into(), |path| path.display().to_string());
            let build = BuildId::of_this_code().map_or_else(|| "unknown".to_owned(), ToString::to_string);
            let program = format!("{program}, build {build}");
            Check::new(NAME, Status::Ok, program, "workers are this program, so they have the same build")
        }
        Some(program) => {
            let found = format!("LOADER_WORKER is {}", Path::new(&program).display());
            Check::new(NAME, Status::Note, found, "it must have registered the datasets that it loads")
        }
    }
}

fn workers(plan: &Plan) -> Vec<Check> {
    const NAME: &str = "workers";
    let (outcome, warnings) = load(plan.options.clone());
    let mut checks: Vec<_> = warnings
        .iter()
        .filter(|warning| !matches!(warning, Warning::NotPinned { .. }))
        .map(|warning| Check::new("options", Status::Warning, warning.to_string(), ""))
        .collect();
    checks.push(match outcome {
        Ok(Loaded { workers: 0, .. }) => {
            Check::new(NAME, Status::Ok, "num_workers is 0", "this process loads the batches itself")
        }
        Ok(Loaded { workers, start, first_batch, cpus }) => {
            let each = start / u32::try_from(workers.max(1)).unwrap_or(u32::MAX);
            let found = format!(
                "{workers} started and answered in {start:.1?}, and the first batch came {first_batch:.1?} later"
            );
            let affinity = plan.options.worker_affinity.clone().unwrap_or_default();
            let on = match (cpus, affinity) {
                (1, WorkerAffinity::Inherit) => "they may use 1 CPU".to_owned(),
                (cpus, affinity) => format!("they may use {cpus} CPUs (worker_affinity is {affinity})"),
            };
            if each > SLOW_START {
                Check::new(NAME, Status::Warning, found, "each epoch begins with this wait")
                    .advice("set persistent_workers, or start fewer workers")
            } else {
                Check::new(NAME, Status::Ok, found, on)
            }
        }
        Err(Error::WorkerNotStarted { source: WorkerStartError::Refused(reason), .. })
            if env::var_os("LOADER_WORKER").is_some() =>
        {
            let meaning = "the worker program starts and answers, but cannot load a dataset of this program's code";
            Check::new(NAME, Status::Note, reason, meaning)
        }
        // The messages say what to do.
        Err(error) => Check::new(NAME, Status::Error, error.to_string(), "no run with these options can start"),
    });
    checks
}

/// What happened when workers were started.
struct Loaded {
    workers: usize,
    start: Duration,
    /// From the last worker's answer to the first batch.
    first_batch: Duration,
    cpus: usize,
}

/// Loads some batches of a dataset of numbers, with all options that are not about the dataset. Returns
/// the loader's warnings too.
fn load(options: LoaderOptions) -> (Result<Loaded, Error>, Vec<Warning>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let keep = move |warning: &Warning| {
        collected.lock().unwrap_or_else(PoisonError::into_inner).push(warning.clone());
    };
    let outcome = load_numbers(options, keep);
    let warnings = std::mem::take(&mut *warnings.lock().unwrap_or_else(PoisonError::into_inner));
    (outcome, warnings)
}

fn load_numbers(
    options: LoaderOptions,
    warn: impl Fn(&Warning) + Send + Sync + 'static,
) -> Result<Loaded, Error> {
    const NUMBERS: usize = 1 << 16;
    // The check of the launcher reports an error of its variables.
    let without_rank = options.clone().launcher(LauncherMode::Off);
    let (mut options, _) = settings::with_rank(options).unwrap_or((without_rank, None));
    (options.batch_size, options.shards, options.on_bad_sample) = (Some(1), None, None);
    // These files and this address belong to the user's own runs.
    (options.trace, options.trace_on_failure, options.metrics) = (None, None, None);
    let numbers =
        Tensor::from_vec(vec![0_u8; NUMBERS], [NUMBERS]).expect("the shape is that of the elements");
    let numbers = TensorDataset::new(numbers).expect("the tensor has a first dimension");
    let loader = DataLoader::builder(numbers).options(options).on_warning(warn).build()?;
    let begun = Instant::now();
    let mut batches = loader.iter()?;
    let start = begun.elapsed();
    batches.next().expect("there are batches")?;
    let first_batch = begun.elapsed() - start;
    Ok(Loaded { workers: batches.num_workers(), start, first_batch, cpus: batches.report().cpus })
}

/// Opens the driver, page-locks a batch, and says what the driver is.
fn gpu(plan: &Plan) -> Option<Check> {
    const NAME: &str = "gpu";
    let is_wanted = plan.options.pin_memory == Some(true);
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let version = version.as_deref().and_then(|text| text.lines().next()).map(str::trim);
    let options = LoaderOptions::default().pin_memory(true);
    let (outcome, warnings) = load(options);
    let reason = warnings.into_iter().find_map(|warning| match warning {
        Warning::NotPinned { reason } => Some(reason),
        _ => None,
    });
    Some(match (outcome, reason, version) {
        (Ok(_), None, version) => {
            let found = version.unwrap_or("the driver opens");
            Check::new(NAME, Status::Ok, found, "pin_memory page-locks batches")
        }
        (Ok(_), Some(_), None) if !is_wanted => {
            let found = "no NVIDIA driver in this kernel";
            Check::new(NAME, Status::Ok, found, "pin_memory would have no effect here")
        }
        (Ok(_), Some(reason), version) => {
            let status = if is_wanted { Status::Warning } else { Status::Note };
            let found = format!("{}: {reason}", version.unwrap_or("no NVIDIA driver in this kernel"));
            Check::new(NAME, status, found, "pin_memory has no effect")
        }
        (Err(error), ..) => Check::new(NAME, Status::Warning, error.to_string(), "pin_memory was not tried"),
    })
}
