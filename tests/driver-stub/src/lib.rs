//! Stands in for NVIDIA's driver (`libcuda.so.1`) in tests. It has the functions that the loader calls, and a
//! table of registered ranges. It is as strict as the driver, and logs at once the wrong calls after which
//! the driver would misbehave later. Environment variables configure it:
//!
//! - `DRIVER_STUB_LOG`: a file to which it appends each call that changes something, as `PID CALL NUMBER
//!   NUMBER`.
//! - `DRIVER_STUB_MODE`: `no-device`; `refuse` (memory cannot be registered); `refuse-later` (only two ranges
//!   can be registered); `shut-down` (the first call that would end a registration fails, and so does every
//!   later call, as at the end of a process); `keep` (registrations cannot be ended).
//! - `DRIVER_STUB_CURRENT`: the device whose context is current on every thread.
//! - `DRIVER_STUB_IN_USE`: the device whose primary context is in use.
#![allow(unsafe_code)] // C's interface

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    ffi::{c_char, c_int, c_uint, c_void},
    fs::{self, File},
    io::Write,
    process, ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const DEINITIALIZED: c_int = 4;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const ILLEGAL_ADDRESS: c_int = 700;
const ALREADY_REGISTERED: c_int = 712;
const NOT_REGISTERED: c_int = 713;

const DEVICES: c_int = 2;
const PORTABLE: c_uint = 1;

/// Number of the device plus one, so that no context is null.
type Context = usize;

struct State {
    is_shut_down: bool,
    /// Number of references to the primary context of each device.
    retained: [u32; DEVICES as usize],
    /// Registered ranges: length by start.
    ranges: BTreeMap<usize, usize>,
    /// Number of calls that tried to register a range.
    registered: u32,
}

static STATE: Mutex<State> =
    Mutex::new(State { is_shut_down: false, retained: [0; 2], ranges: BTreeMap::new(), registered: 0 });

thread_local! {
    static CONTEXTS: RefCell<Vec<Context>> = RefCell::new(number_in("DRIVER_STUB_CURRENT").map(|device| device + 1).into_iter().collect());
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mode_is(mode: &str) -> bool {
    env::var("DRIVER_STUB_MODE").is_ok_and(|set| set == mode)
}

fn number_in(variable: &str) -> Option<usize> {
    env::var(variable).ok()?.parse().ok()
}

fn log(call: &str, first: usize, second: usize) {
    let Ok(path) = env::var("DRIVER_STUB_LOG") else { return };
    let file = File::options().append(true).create(true).open(path);
    let line = format!("{} {call} {first} {second}\n", process::id());
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the log can be written");
}

/// True if the whole range is mapped for reading and writing.
fn is_mapped(start: usize, len: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let mut next = start;
    for line in maps.lines() {
        let mut fields = line.split([' ', '-']);
        let mut address = || usize::from_str_radix(fields.next().unwrap_or_default(), 16).unwrap_or(0);
        let (from, to) = (address(), address());
        if (from..to).contains(&next) && fields.next().is_some_and(|access| access.starts_with("rw")) {
            next = to;
        }
    }
    next >= start + len
}

/// Writes a result for the caller.
///
/// # Safety
/// `result` must be valid for a write, as the driver's interface requires.
unsafe fn answer<T>(result: *mut T, value: T) -> c_int {
    // SAFETY: as above.
    unsafe { result.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    match flags {
        _ if mode_is("no-device") => NO_DEVICE,
        0 => SUCCESS,
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        ALREADY_REGISTERED => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        // SAFETY: the caller's promise.
        _ => return unsafe { answer(name, ptr::null()) + INVALID_VALUE },
    };
    // SAFETY: the caller's promise.
    unsafe { answer(name, text.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(count, DEVICES) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    match ordinal {
        // SAFETY: the caller's promise.
        0..DEVICES => unsafe { answer(device, ordinal) },
        _ => INVALID_DEVICE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    let in_use = number_in("DRIVER_STUB_IN_USE") == usize::try_from(device).ok();
    // SAFETY: the caller's promise.
    unsafe { answer(flags, 0) };
    // SAFETY: the caller's promise.
    unsafe { answer(active, c_int::from(in_use)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> c_int {
    let Some(count) = usize::try_from(device).ok().filter(|&device| device < DEVICES as usize) else {
        return INVALID_DEVICE;
    };
    state().retained[count] += 1;
    log("retain", count, 0);
    // SAFETY: the caller's promise.
    unsafe { answer(context, count + 1) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    let mut state = state();
    if state.is_shut_down {
        return DEINITIALIZED;
    }
    let device = device as usize;
    match state.retained.get_mut(device) {
        Some(count @ 1..) => {
            *count -= 1;
            log("release", device, 0);
            SUCCESS
        }
        _ => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    match CONTEXTS.with_borrow(|contexts| contexts.last().copied()) {
        // SAFETY: the caller's promise.
        Some(context) => unsafe { answer(device, context as c_int - 1) },
        None => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Context) -> c_int {
    let state = state();
    if state.is_shut_down {
        return DEINITIALIZED;
    }
    if context == 0 || state.retained.get(context - 1).is_none_or(|&count| count == 0) {
        log("released-context", context, 0);
        return INVALID_CONTEXT;
    }
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Context) -> c_int {
    match CONTEXTS.with_borrow_mut(Vec::pop) {
        // SAFETY: the caller's promise.
        Some(popped) => unsafe { answer(context, popped) },
        None => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, len: usize, flags: c_uint) -> c_int {
    let mut state = state();
    let start = start as usize;
    if CONTEXTS.with_borrow(Vec::is_empty) {
        return INVALID_CONTEXT;
    }
    if flags != PORTABLE || len == 0 || !is_mapped(start, len) {
        log("wrong-register", start, len);
        return INVALID_VALUE;
    }
    state.registered += 1;
    if mode_is("refuse") || mode_is("refuse-later") && state.registered > 2 {
        return OUT_OF_MEMORY;
    }
    let page = |address: usize| address / 4096;
    let touches = |(&other, &size): (&usize, &usize)| {
        page(other) <= page(start + len - 1) && page(start) <= page(other + size - 1)
    };
    if state.ranges.iter().any(touches) {
        log("wrong-register", start, len);
        return ALREADY_REGISTERED;
    }
    state.ranges.insert(start, len);
    log("register", start, len);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> c_int {
    let mut state = state();
    let start = start as usize;
    if mode_is("shut-down") {
        state.is_shut_down = true;
        return DEINITIALIZED;
    }
    if mode_is("keep") {
        return ILLEGAL_ADDRESS;
    }
    if CONTEXTS.with_borrow(Vec::is_empty) {
        return INVALID_CONTEXT;
    }
    match state.ranges.remove(&start) {
        Some(len) => {
            let call = if is_mapped(start, len) { "unregister" } else { "unmapped-before-unregister" };
            log(call, start, len);
            SUCCESS
        }
        None => {
            log("wrong-unregister", start, 0);
            NOT_REGISTERED
        }
    }
}
