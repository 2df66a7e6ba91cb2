//! Files that are endless, or whose opening would wait, fail at once.

use std::{fs, os::unix, path::Path, sync::mpsc, thread, time::Duration};

use loader_data::{ImageError, ImageFolder, ImageProblem};
use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::support::{dot, folder, load};

/// The default of `max_file_bytes`.
const LIMIT: u64 = loader_data::MAX_FILE_BYTES;

/// Loads the only image of a folder, which `make` creates at the given path, and returns why it fails. Waits
/// for at most 10 seconds, because opening a pipe or reading a device may never end.
fn problem(max_file_bytes: u64, make: impl FnOnce(&Path)) -> ImageProblem {
    let made = folder(&[("class/notes.txt", b"")]);
    make(&made.path().join("class/odd.jpg"));
    let images = ImageFolder::open(made.path()).unwrap().max_file_bytes(max_file_bytes);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(load(&images, 0).map(drop)));
    let error = receiver.recv_timeout(Duration::from_secs(10)).expect("loading ends").unwrap_err();
    let error = error.downcast::<ImageError>().unwrap();
    assert!(error.to_string().contains("class/odd.jpg` "), "{error}");
    error.problem
}

#[test]
fn a_pipe_without_a_writer_fails() {
    let found = problem(LIMIT, |path| mkfifo(path, Mode::S_IRWXU).unwrap());
    assert!(matches!(found, ImageProblem::NotAFile { found: "a named pipe" }), "{found}");
}

#[test]
fn a_link_to_a_device_fails() {
    let found = problem(LIMIT, |path| unix::fs::symlink("/dev/zero", path).unwrap());
    assert!(matches!(found, ImageProblem::NotAFile { found: "a device" }), "{found}");
}

#[test]
fn a_large_sparse_file_fails_before_it_is_read() {
    let sparse = |length| move |path: &Path| fs::File::create(path).unwrap().set_len(length).unwrap();
    let found = problem(LIMIT, sparse(6 << 30));
    assert!(matches!(found, ImageProblem::FileTooLarge { bytes: 0x1_8000_0000, max: LIMIT }), "{found}");
    // The first bytes are not those of an image, so the dataset does not read the other 6 GiB.
    let found = problem(u64::MAX, sparse(6 << 30));
    assert!(matches!(found, ImageProblem::UnknownFormat { .. }), "{found}");
}

#[test]
fn a_file_may_have_exactly_max_file_bytes() {
    let made = folder(&[("class/dot.png", &dot())]);
    let images = ImageFolder::open(made.path()).unwrap();
    let bytes = dot().len() as u64;
    assert!(load(&images.clone().max_file_bytes(bytes), 0).is_ok());
    let error = load(&images.max_file_bytes(bytes - 1), 0).unwrap_err().to_string();
    assert!(error.contains("raise `max_file_bytes`"), "{error}");
}
