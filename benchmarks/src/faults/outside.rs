//! The program to which something happens from outside: to its processes, or to files that it has written.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    os::fd::AsFd,
    time::Duration,
};

use anyhow::ensure;
use loader_core::{Error, WorkerAffinity, WorkerProgram, prelude::*};
use nix::{
    libc,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill, raise},
    },
    unistd::{close, getpid},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::Serialize;

use crate::{
    artefacts,
    host::{ARMED, BATCH_SIZE, BATCHES, FAULT_BATCH, Report, Samples, pid},
    list::{Call, Fault, InSample, Moment, Outside, Step},
    template,
};

/// Number of descriptors that the program closes.
const DESCRIPTORS: i32 = 4096;
/// The copy of standard output to which the program writes its lines. It is above those that the program closes.
const OUT: i32 = DESCRIPTORS + 1;

/// The first line of a program that has started no worker, or whose epochs have workers of their own.
const NO_WORKERS: [u32; 0] = [];

/// Runs the program of try `number`.
pub(crate) fn run(fault: &Fault, what: Outside, number: usize) -> anyhow::Result<()> {
    let (out, report) = (copy_of_stdout()?, Report::default());
    let mut program = Program { fault, what, number, out, report, has_said_workers: false };
    match what {
        Outside::Damage(artefact) => {
            program.say(&NO_WORKERS)?;
            artefacts::damage(artefact, number, &mut program.report)?;
        }
        Outside::OtherUser(_) => {
            program.say(&NO_WORKERS)?;
            program.report.right = BATCHES;
            program.report.error = artefacts::open_cache().err().map(|error| error.to_string());
        }
        _ => program.try_epochs()?,
    }
    program.say(&program.report)
}

struct Program<'a> {
    fault: &'a Fault,
    what: Outside,
    number: usize,
    out: File,
    report: Report,
    /// True once the first line was written: the process ids of the workers.
    has_said_workers: bool,
}

impl Program<'_> {
    /// Writes a line for the watching process.
    fn say(&self, line: &impl Serialize) -> anyhow::Result<()> {
        Ok(writeln!(&self.out, "{}", serde_json::to_string(line)?)?)
    }

    fn try_epochs(&mut self) -> anyhow::Result<()> {
        let armed = env::temp_dir().join(ARMED);
        fs::write(&armed, "")?;
        match self.what {
            Outside::PidNamespace => ensure!(getpid().as_raw() == 1, "main is not the first process"),
            Outside::CloseStandardStreams => (0..3).try_for_each(close)?,
            Outside::Deny(call) => deny(call, [libc::EPERM, libc::ENOSYS][self.number % 2])?,
            _ => {}
        }
        if let Err(error) = self.epochs() {
            // Any other error is one of this program.
            self.report.error = Some(error.downcast::<Error>()?.to_string());
        }
        if !self.has_said_workers {
            self.has_said_workers = true;
            self.say(&NO_WORKERS)?;
        }
        let happens_once = match self.what {
            Outside::MemoryGroup => true,
            Outside::Template(step, _) => step != Step::BetweenEpochs,
            _ => false,
        };
        ensure!(!happens_once || !armed.exists(), "the fault did not happen");
        match (self.what, &self.report.error) {
            (Outside::Deny(call), Some(text)) => self.report.wrong |= !text.contains(call.name),
            // An iterator may have lost its descriptors, but a new loader has its own.
            (Outside::CloseOthers(_), Some(_)) => {
                // With this moment, the epoch closes no descriptors again.
                self.what = Outside::CloseOthers(Moment::Built);
                let loader = self.build()?;
                self.epoch(&loader)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads one epoch, or two if the fault may happen between them.
    fn epochs(&mut self) -> anyhow::Result<()> {
        let loader = self.build()?;
        if self.what == Outside::CloseOthers(Moment::Built) {
            close_others();
        }
        self.epoch(&loader)?;
        if let Outside::Template(step, ending) = self.what {
            if step == Step::BetweenEpochs {
                template::end_running(ending)?;
            }
            self.epoch(&loader)?;
        }
        Ok(())
    }

    fn build(&self) -> anyhow::Result<DataLoader<Tensor<u64>>> {
        let samples = Samples::new((self.what == Outside::MemoryGroup).then_some(InSample::Fill))?;
        let builder = DataLoader::builder(samples).batch_size(BATCH_SIZE).num_workers(2);
        let builder = match self.what {
            Outside::Pause => builder.timeout(Duration::from_secs(3)),
            Outside::Deny(Call { name: "sched_setaffinity", .. }) => {
                builder.worker_affinity(WorkerAffinity::Pack)
            }
            Outside::Template(..) => {
                let arguments = [template::ARGUMENT, self.fault.name, &self.number.to_string()];
                let program = WorkerProgram::new(env::current_exe()?).args(arguments).template();
                builder.registered(template::SAMPLES).worker_program(program)
            }
            _ => builder,
        };
        Ok(builder.build()?)
    }

    /// Reads an epoch, and compares each batch.
    fn epoch(&mut self, loader: &DataLoader<Tensor<u64>>) -> anyhow::Result<()> {
        let mut batches = loader.iter()?;
        if !self.has_said_workers {
            self.has_said_workers = true;
            self.say(&batches.worker_pids())?;
        }
        self.report.right = 0;
        for number in 0.. {
            if number == FAULT_BATCH {
                self.happen(&batches.worker_pids())?;
            }
            let Some(batch) = batches.next() else { break };
            let first = (number * BATCH_SIZE) as u64;
            let right = (first..first + BATCH_SIZE as u64).eq(batch?.as_slice().iter().copied());
            self.report.wrong |= !right;
            self.report.right += usize::from(right);
        }
        // If no worker was replaced, the memory of the sample fitted into the control group.
        let is_replaced = batches.report().restarts > 0;
        ensure!(self.what != Outside::MemoryGroup || is_replaced, "the control group limited nothing");
        // An error would have ended this function, so these batches are missing without one.
        self.report.wrong |= self.report.right < BATCHES;
        Ok(())
    }

    /// Causes the fault, if it happens in mid-epoch.
    fn happen(&self, workers: &[u32]) -> anyhow::Result<()> {
        match self.what {
            Outside::Pause => {
                // The watching process continues main and the workers.
                self.say(&"now")?;
                workers.iter().try_for_each(|&worker| kill(pid(worker), Signal::SIGSTOP))?;
                raise(Signal::SIGSTOP)?;
            }
            Outside::CloseOthers(Moment::InEpoch) => close_others(),
            _ => {}
        }
        Ok(())
    }
}

fn copy_of_stdout() -> anyhow::Result<File> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(OUT as u64 + 1), hard)?;
    Ok(File::from(rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), OUT)?))
}

/// Closes all descriptors from 3 on, as a daemon does.
fn close_others() {
    (3..DESCRIPTORS).for_each(|fd| _ = close(fd));
}

/// Makes the kernel refuse a system call to this process and those that it starts, as the sandbox of a container does.
fn deny(call: Call, error: i32) -> anyhow::Result<()> {
    let rules = match call.second {
        None => Vec::new(),
        Some(second) => {
            let is_second = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, second)?;
            vec![SeccompRule::new(vec![is_second])?]
        }
    };
    let refused = SeccompAction::Errno(error.unsigned_abs());
    let architecture = env::consts::ARCH.try_into()?;
    let filter =
        SeccompFilter::new([(call.number, rules)].into(), SeccompAction::Allow, refused, architecture)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
