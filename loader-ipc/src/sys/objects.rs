//! Finds the program or shared library that contains an address of this process.

use std::{
    cell::RefCell,
    ffi::{CStr, OsStr, c_int, c_void},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    slice,
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use nix::libc::{PF_R, PT_LOAD, PT_NOTE, dl_iterate_phdr, dl_phdr_info, pthread_atfork, size_t};
use object::{NativeEndian, elf, read::elf::NoteIterator};

/// Held by a thread that reads the list of loaded objects, and by one that forks. The dynamic loader has a lock of its
/// own for the list, which glibc does not reset in a forked child: if one thread forked while another read the list, a
/// child that reads it, for example when C++ code in it raises an exception, would wait without end.
static LIST_LOCK: Mutex<()> = Mutex::new(());

thread_local! {
    /// [`LIST_LOCK`], while this thread forks.
    static FORK_GUARD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Locks [`LIST_LOCK`]. From the first call on, a thread that forks by the C library waits for the lock.
fn lock_list() -> MutexGuard<'static, ()> {
    static REGISTRATION: Once = Once::new();
    extern "C" fn before_fork() {
        // A thread that is ending has no `FORK_GUARD` any more.
        drop(FORK_GUARD.try_with(|forks| forks.replace(Some(lock()))));
    }
    extern "C" fn after_fork() {
        drop(FORK_GUARD.try_with(RefCell::take));
    }
    fn lock() -> MutexGuard<'static, ()> {
        LIST_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }
    REGISTRATION.call_once(|| {
        // SAFETY: the handlers only lock and unlock `LIST_LOCK` in the thread that forks, which does not hold it: no
        // code forks while it reads the list. If the call fails for lack of memory, forks do not wait for the lock.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    });
    lock()
}

/// A file of code that is loaded into this process: the program or a shared library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedObject {
    path: PathBuf,
    is_program: bool,
    /// Difference between the addresses in the file and in memory. It distinguishes two loaded copies of one
    /// file.
    base: usize,
    build_id: Option<Vec<u8>>,
    layout: u64,
}

impl LoadedObject {
    /// Returns the object that contains `address`; `None` if no file of code was loaded there.
    pub fn containing(address: usize) -> Option<Self> {
        let _list = lock_list();
        let mut search = Search { address, visited: 0, found: None };
        // SAFETY: `visit` is called only during this call, on this thread, and gets `search`, which outlives
        // the call.
        unsafe { dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    /// Returns the path of the file. For the program, this is the path of `/proc/self/exe`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for the program, false for a shared library.
    pub fn is_program(&self) -> bool {
        self.is_program
    }

    /// Returns the linker's build id. It is read from memory, because the file may have been replaced since
    /// it was loaded.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// Returns a hash of the offsets, sizes and flags of the loadable segments. Programs built with another
    /// Rust version may compute another hash.
    pub fn layout(&self) -> u64 {
        self.layout
    }
}

struct Search {
    address: usize,
    /// Number of objects seen so far. The first one is the program (dl_iterate_phdr(3)).
    visited: usize,
    found: Option<LoadedObject>,
}

/// Checks one object. Returns 0 to continue the iteration.
///
/// # Safety
/// `info` is the argument of `dl_iterate_phdr`, and `search` is a [`Search`] that nothing else uses during
/// the call.
unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: size_t, search: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the caller's promise; the dynamic loader holds its lock during the call.
    let info = unsafe { &*info };
    let is_program = search.visited == 0;
    search.visited += 1;
    // SAFETY: the dynamic loader lists this many headers, which stay in place while the object is loaded.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let holds = |address: usize, len: usize| {
        headers.iter().any(|header| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            header.p_type == PT_LOAD
                && header.p_flags & PF_R != 0
                && address >= start
                && address.wrapping_sub(start).saturating_add(len) <= header.p_memsz as usize
        })
    };
    if !holds(search.address, 1) {
        return 0;
    }
    let notes = headers.iter().filter(|header| header.p_type == PT_NOTE).filter_map(|header| {
        let (start, len) = (base.wrapping_add(header.p_vaddr as usize), header.p_memsz as usize);
        // SAFETY: the bytes are in a readable segment of the object, which is loaded, and notes are never
        // written.
        let bytes = || unsafe { slice::from_raw_parts(start as *const u8, len) };
        holds(start, len).then(|| (bytes(), header.p_align))
    });
    let build_id = notes.filter_map(|(bytes, align)| build_id_in(bytes, align)).next();
    let path = if is_program || info.dlpi_name.is_null() {
        fs::read_link("/proc/self/exe").unwrap_or_default()
    } else {
        // SAFETY: the name is not null, and the dynamic loader ends names with a zero byte.
        OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()).into()
    };
    let mut layout = DefaultHasher::new();
    for header in headers.iter().filter(|header| header.p_type == PT_LOAD) {
        let sizes = [header.p_offset, header.p_vaddr, header.p_filesz, header.p_memsz];
        (sizes, header.p_flags).hash(&mut layout);
    }
    search.found = Some(LoadedObject { path, is_program, base, build_id, layout: layout.finish() });
    1
}

fn build_id_in(notes: &[u8], align: u64) -> Option<Vec<u8>> {
    let endian = NativeEndian::default();
    let notes = NoteIterator::<elf::FileHeader64<NativeEndian>>::new(endian, align, notes).ok()?;
    let mut ids = notes
        .flatten()
        .filter(|note| note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID);
    Some(ids.next()?.desc().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_libraries_are_distinguished() {
        let program = LoadedObject::containing(build_id_in as *const () as usize).unwrap();
        assert!(program.is_program());
        assert_eq!(program.path(), std::env::current_exe().unwrap());
        let library = LoadedObject::containing(nix::libc::getpid as *const () as usize).unwrap();
        assert!(!library.is_program() && library.path().to_string_lossy().contains("libc"), "{library:?}");
        assert_ne!(program.build_id(), library.build_id());
        assert_ne!(program.layout(), library.layout());
        let on_the_heap = Box::new(0u8);
        assert_eq!(LoadedObject::containing((&raw const *on_the_heap).addr()), None);
    }

    #[test]
    fn the_build_id_in_memory_is_that_of_the_file() {
        use object::Object;
        let bytes = fs::read("/proc/self/exe").unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let program = LoadedObject::containing(build_id_in as *const () as usize).unwrap();
        assert_eq!(program.build_id(), file.build_id().unwrap());
        assert!(program.build_id().is_some(), "the linker of this test wrote one");
    }
}
