//! Calls the CUDA driver.
//!
//! `libloading` looks the twelve calls up in the driver; they have not changed since CUDA 11, and a missing
//! call is an error. Alternative considered: the crate `cudarc`, which declares all calls. Rejected because
//! its features select one version of CUDA: a program in which two crates select different versions does not
//! compile (263 errors), and one crate must not load the driver while another links it. A library must not
//! choose for its users' candle or burn. With `cudarc`, a missing call is a panic.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt, mem, ptr,
    ptr::NonNull,
};

use libloading::Library;

use crate::{DriverError, PinError};

const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: c_int = 0;
/// Page-locks memory for every context, so that the program can copy to any device.
const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;

type Device = c_int;
type Context = *mut c_void;

/// The driver, with the primary context of a device.
pub(crate) struct Driver {
    calls: Calls,
    device: Device,
    context: Context,
}

// SAFETY: any thread may call the driver, and a context handle is valid on every thread.
unsafe impl Send for Driver {}
// SAFETY: as above. The current context is a property of a thread, and each call here restores it.
unsafe impl Sync for Driver {}

macro_rules! calls {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The driver's functions, by their names in cuda.h. Each returns 0 or the number of an error.
        #[allow(non_snake_case)]
        struct Calls { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Calls {
            fn find(library: &Library) -> Result<Self, PinError> {
                $(
                    // SAFETY: the type is the one in cuda.h.
                    #[allow(non_snake_case)]
                    let $name = unsafe { library.get(stringify!($name)) };
                )*
                Ok(Self { $($name: *$name.map_err(|_| PinError::OldDriver(stringify!($name)))?,)* })
            }
        }
    };
}

calls! {
    cuInit(c_uint);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut Device, c_int);
    cuDevicePrimaryCtxGetState(Device, *mut c_uint, *mut c_int);
    cuDevicePrimaryCtxRetain(*mut Context, Device);
    cuDevicePrimaryCtxRelease_v2(Device);
    cuCtxGetDevice(*mut Device);
    cuCtxPushCurrent_v2(Context);
    cuCtxPopCurrent_v2(*mut Context);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
}

impl Driver {
    pub(crate) fn open() -> Result<Self, PinError> {
        let calls = Calls::load()?;
        // SAFETY: `cuInit` may be called at any time and any number of times.
        match unsafe { (calls.cuInit)(0) } {
            DriverError::NO_DEVICE => return Err(PinError::NoDevice),
            code => calls.check("cuInit", code)?,
        }
        let device = calls.choose_device()?;
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is to a variable of the right type.
        let code = unsafe { (calls.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        calls.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { calls, device, context })
    }

    /// Releases the context. All registrations made with it must have ended.
    pub(crate) fn close(&self) {
        // SAFETY: `open` has retained the context once. If the call fails, the driver has been shut down, and
        // nothing is left to do.
        unsafe { (self.calls.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }

    /// Page-locks a range.
    ///
    /// # Safety
    /// The range must be mapped for reading and writing until [`unregister`](Self::unregister) succeeds.
    pub(crate) unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Result<(), PinError> {
        let start = start.as_ptr().cast();
        // SAFETY: the caller promises that the range is mapped. The driver locks its pages and does not touch
        // their bytes.
        let register =
            || unsafe { (self.calls.cuMemHostRegister_v2)(start, len, CU_MEMHOSTREGISTER_PORTABLE) };
        let (call, code) = self.in_context("cuMemHostRegister", register);
        self.calls.check(call, code)
    }

    /// Ends a registration. Returns false if the range is still registered.
    pub(crate) fn unregister(&self, start: NonNull<u8>) -> bool {
        // SAFETY: any address is allowed: the driver looks it up among its registrations.
        let unregister = || unsafe { (self.calls.cuMemHostUnregister)(start.as_ptr().cast()) };
        let (_, code) = self.in_context("cuMemHostUnregister", unregister);
        // A driver that has been shut down, as at the end of the process, has ended all registrations.
        matches!(code, SUCCESS | DriverError::DEINITIALIZED)
    }

    /// Makes a call in the driver's context, and restores the one that was current on this thread. Returns
    /// the result with the name of the call that gave it.
    fn in_context(&self, name: &'static str, call: impl FnOnce() -> c_int) -> (&'static str, c_int) {
        // SAFETY: the context is retained.
        let pushed = unsafe { (self.calls.cuCtxPushCurrent_v2)(self.context) };
        if pushed != SUCCESS {
            return ("cuCtxPushCurrent", pushed);
        }
        let code = call();
        let mut popped = ptr::null_mut();
        // SAFETY: pops the context that was pushed above; the pointer is to a variable of the right type.
        unsafe { (self.calls.cuCtxPopCurrent_v2)(&raw mut popped) };
        (name, code)
    }
}

impl Calls {
    fn load() -> Result<Self, PinError> {
        // SAFETY: loading runs the driver's initialisers, as in every program that uses the driver.
        let library =
            unsafe { Library::new(LIBRARY) }.map_err(|error| PinError::NoDriver(error.to_string()))?;
        let calls = Self::find(&library)?;
        // The driver has threads, so it must never be unloaded.
        mem::forget(library);
        Ok(calls)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), PinError> {
        match code {
            SUCCESS => Ok(()),
            _ => Err(PinError::CallFailed { call, error: DriverError { code, name: self.name_of(code) } }),
        }
    }

    fn name_of(&self, code: c_int) -> Option<String> {
        let mut name = ptr::null();
        // SAFETY: the pointer is to a variable of the right type.
        let known = unsafe { (self.cuGetErrorName)(code, &raw mut name) };
        if known != SUCCESS || name.is_null() {
            return None;
        }
        // SAFETY: the name is a string constant in the driver, which is never unloaded.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Chooses as [`Pinner::open`](crate::Pinner::open) says. Not always the first device, because a context
    /// on a device that the program does not use takes hundreds of megabytes of its memory.
    fn choose_device(&self) -> Result<Device, PinError> {
        let mut device = 0;
        // SAFETY: the pointer is to a variable of the right type.
        if unsafe { (self.cuCtxGetDevice)(&raw mut device) } == SUCCESS {
            return Ok(device);
        }
        let mut count = 0;
        // SAFETY: as above.
        let code = unsafe { (self.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", code)?;
        let mut first = None;
        for ordinal in 0..count {
            // SAFETY: as above.
            let code = unsafe { (self.cuDeviceGet)(&raw mut device, ordinal) };
            self.check("cuDeviceGet", code)?;
            if self.is_in_use(device) {
                return Ok(device);
            }
            first = first.or(Some(device));
        }
        first.ok_or(PinError::NoDevice)
    }

    fn is_in_use(&self, device: Device) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the pointers are to variables of the right types.
        let code = unsafe { (self.cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut active) };
        code == SUCCESS && active != 0
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("device", &self.device).finish_non_exhaustive()
    }
}
