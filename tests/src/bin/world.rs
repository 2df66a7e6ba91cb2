//! A main process that changes its settings at one moment, and prints which of them a worker has: `test-world`, with the
//! moment in the variable `MOMENT` and a folder for files in `FOLDER`. A worker gets no arguments.
#![allow(unsafe_code)] // for the settings of the C library

use std::{
    cell::Cell,
    collections::BTreeMap,
    env,
    ffi::CStr,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    mem::MaybeUninit,
    path::PathBuf,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use loader_core::prelude::*;
use loader_tests::{Watchdog, datasets::Count, processes};
use nix::{
    libc,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        stat::{Mode, umask},
    },
    unistd::{Pid, getpgrp, getpid, getsid},
};

static STATIC: OnceLock<String> = OnceLock::new();
static HASHES: OnceLock<RandomState> = OnceLock::new();
/// True if a thread of this process has run the panic hook of [`set`].
static IS_HOOK_CALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD_LOCAL: Cell<bool> = const { Cell::new(false) };
}

/// The limit of open files that [`set`] sets.
const FILES: u64 = 321;
/// The umask that [`set`] sets.
const UMASK: Mode = Mode::from_bits_truncate(0o067);
/// The priority that [`set`] sets.
const PRIORITY: i32 = 19;
const CLOSED_ON_EXEC: &str = "closed-on-exec";
const INHERITABLE: &str = "inheritable";

/// A value that main drops at its end.
struct Dropped;

impl Drop for Dropped {
    fn drop(&mut self) {
        note("dropped");
    }
}

fn main() -> anyhow::Result<()> {
    let moment = env::var("MOMENT")?;
    let _dropped = Dropped;
    note("made");
    if moment == "before init" {
        set()?;
    }
    loader_worker::init();
    let _watchdog = Watchdog::start();
    if moment == "after init" {
        set()?;
    }
    let dataset = Count(8).map(|_, _| Ok(serde_json::to_string(&(see(), describe()?))?));
    let builder = DataLoader::builder(dataset).num_workers(1).prefetch_factor(1).on_warning(|_| {});
    let mut batches = builder.build()?.iter()?;
    if moment == "after iter" {
        batches.next().expect("a first batch")?;
        set()?;
        processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
    }
    let batch = batches.last().expect("a last batch")?;
    let of_worker: serde_json::Value = serde_json::from_str(&batch[0])?;
    println!("{}", serde_json::to_string(&((see(), describe()?), of_worker))?);
    Ok(())
}

/// Adds a line to the file `name` of the folder.
fn note(name: &str) {
    let folder = PathBuf::from(env::var_os("FOLDER").expect("the test has set it"));
    let mut file = OpenOptions::new().create(true).append(true).open(folder.join(name)).expect("it opens");
    writeln!(file, "{}", getpid()).expect("it can be written");
}

extern "C" fn at_exit() {
    note("exited");
}

extern "C" fn handle(_signal: i32) {}

/// Changes everything that [`see`] looks for.
fn set() -> anyhow::Result<()> {
    STATIC.set("set".to_owned()).expect("it is set once");
    THREAD_LOCAL.set(true);
    tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new())?;
    thread::Builder::new().name("pool".into()).spawn(|| thread::sleep(Duration::from_secs(60)))?;
    std::panic::set_hook(Box::new(|_| IS_HOOK_CALLED.store(true, Ordering::Relaxed)));
    // SAFETY: no other thread of this process reads or writes its environment.
    unsafe { env::set_var("WORLD", "set") };
    set_c_library();
    set_process()?;
    set_signals()
}

fn set_c_library() {
    // SAFETY: no other thread uses the locale, and the string ends with a zero.
    let locale = unsafe { libc::setlocale(libc::LC_ALL, c"C.UTF-8".as_ptr()) };
    assert!(!locale.is_null(), "glibc has this locale built in");
    // SAFETY: the option only changes how the allocator works.
    assert_eq!(unsafe { libc::mallopt(libc::M_MMAP_MAX, 0) }, 1);
    // SAFETY: the function may run at the end of the process.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
}

/// Changes attributes of the process, and opens files.
fn set_process() -> anyhow::Result<()> {
    let folder = PathBuf::from(env::var("FOLDER")?);
    let closed_on_exec = File::create(folder.join(CLOSED_ON_EXEC))?;
    let inheritable = File::create(folder.join(INHERITABLE))?;
    rustix::io::fcntl_setfd(&inheritable, rustix::io::FdFlags::empty())?;
    // They stay open as long as the process runs.
    std::mem::forget((closed_on_exec, inheritable));
    env::set_current_dir(folder)?;
    umask(UMASK);
    setrlimit(Resource::RLIMIT_NOFILE, FILES, getrlimit(Resource::RLIMIT_NOFILE)?.1)?;
    rustix::process::setpriority_process(None, PRIORITY)?;
    let mut cpus = CpuSet::new();
    cpus.set(first_cpu()?)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

fn set_signals() -> anyhow::Result<()> {
    let action = |handler| SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD, Signal::SIGPIPE] {
        // SAFETY: the handler does nothing.
        unsafe { sigaction(signal, &action(SigHandler::Handler(handle))) }?;
    }
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGALRM, &action(SigHandler::SigIgn)) }?;
    Ok(SigSet::from(Signal::SIGVTALRM).thread_block()?)
}

fn first_cpu() -> nix::Result<usize> {
    let cpus = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).find(|&cpu| cpus.is_set(cpu).unwrap_or(false)).unwrap_or(0))
}

/// Returns for each setting whether this process has what [`set`] sets.
fn see() -> BTreeMap<&'static str, bool> {
    let cpus = sched_getaffinity(Pid::from_raw(0)).expect("a process has CPUs");
    let number_of_cpus = (0..CpuSet::count()).filter(|&cpu| cpus.is_set(cpu).unwrap_or(false)).count();
    let mask = umask(Mode::empty());
    umask(mask);
    let is_in_folder =
        env::var_os("FOLDER").zip(env::current_dir().ok()).is_some_and(|(a, b)| a == b.as_os_str());
    BTreeMap::from([
        ("static", STATIC.get().is_some()),
        ("thread-local variable", THREAD_LOCAL.get()),
        ("subscriber", tracing::dispatcher::has_been_set()),
        ("thread", has_thread("pool")),
        ("panic hook", has_panic_hook()),
        ("environment variable", env::var_os("WORLD").is_some()),
        ("locale", is_locale_set()),
        ("option of the allocator", !maps_a_block(64 << 20)),
        ("close-on-exec descriptor", has_open(CLOSED_ON_EXEC)),
        ("inheritable descriptor", has_open(INHERITABLE)),
        ("working directory", is_in_folder),
        ("umask", mask == UMASK),
        ("limit", getrlimit(Resource::RLIMIT_NOFILE).is_ok_and(|(limit, _)| limit == FILES)),
        ("priority", rustix::process::getpriority_process(None) == Ok(PRIORITY)),
        ("CPUs", number_of_cpus == 1),
        ("handler of SIGTERM", has_action(Signal::SIGTERM, handle as *const () as libc::sighandler_t)),
        ("handler of SIGINT", has_action(Signal::SIGINT, handle as *const () as libc::sighandler_t)),
        ("handler of SIGCHLD", has_action(Signal::SIGCHLD, handle as *const () as libc::sighandler_t)),
        ("handler of SIGPIPE", has_action(Signal::SIGPIPE, handle as *const () as libc::sighandler_t)),
        ("ignored signal", has_action(Signal::SIGALRM, libc::SIG_IGN)),
        ("blocked signal", SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGVTALRM))),
    ])
}

fn has_thread(name: &str) -> bool {
    let mut tasks = fs::read_dir("/proc/self/task").expect("proc is mounted").flatten();
    tasks.any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
}

fn has_panic_hook() -> bool {
    drop(thread::spawn(|| panic!("this panic shows which hook the process has")).join());
    IS_HOOK_CALLED.load(Ordering::Relaxed)
}

fn is_locale_set() -> bool {
    // SAFETY: without a name the call only returns the present one.
    let name = unsafe { libc::setlocale(libc::LC_NUMERIC, ptr::null()) };
    // SAFETY: it is a string that ends with a zero, and nobody changes the locale meanwhile.
    unsafe { CStr::from_ptr(name) == c"C.UTF-8" }
}

/// True if the allocator maps a block of its own for `size` bytes.
fn maps_a_block(size: usize) -> bool {
    let before = mapped_blocks();
    let block = Vec::<u8>::with_capacity(size);
    let is_mapped = mapped_blocks() > before;
    drop(std::hint::black_box(block));
    is_mapped
}

/// Returns the number of blocks that the allocator has mapped.
fn mapped_blocks() -> usize {
    // SAFETY: the call only counts.
    unsafe { libc::mallinfo2() }.hblks
}

fn has_open(name: &str) -> bool {
    let descriptors = fs::read_dir("/proc/self/fd").expect("proc is mounted").flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path.ends_with(name))
}

fn has_action(signal: Signal, expected: libc::sighandler_t) -> bool {
    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one.
    let status = unsafe { libc::sigaction(signal as libc::c_int, ptr::null(), present.as_mut_ptr()) };
    assert_eq!(status, 0, "the signal exists");
    // SAFETY: the call has succeeded, so it has written the action.
    let present = unsafe { present.assume_init() };
    present.sa_sigaction == expected
}

/// Returns what a process has whatever the program sets.
fn describe() -> anyhow::Result<BTreeMap<&'static str, String>> {
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    print!("printed");
    io::stdout().flush()?;
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let program = fs::canonicalize("/proc/self/exe")?;
    Ok(BTreeMap::from([
        ("arguments", format!("{:?}", env::args().skip(1).collect::<Vec<_>>())),
        ("program", program.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())),
        ("rank", env::var("RANK").unwrap_or_default()),
        ("hash", HASHES.get_or_init(RandomState::new).hash_one("name").to_string()),
        ("group", getpgrp().to_string()),
        ("user", nix::unistd::getuid().to_string()),
        ("control group", read("/proc/self/cgroup")?),
        ("session", getsid(None)?.to_string()),
        ("name", read("/proc/self/comm")?),
        ("adjustment", read("/proc/self/oom_score_adj")?),
        ("input", input),
        ("maps a block of 1 MiB", maps_a_block(1 << 20).to_string()),
        ("thread", thread::current().name().unwrap_or_default().to_owned()),
        ("namespaces", namespaces()?),
    ]))
}

fn namespaces() -> io::Result<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/ns")? {
        found.push(fs::read_link(entry?.path())?.display().to_string());
    }
    Ok(found.join(" "))
}
