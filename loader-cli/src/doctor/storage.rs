//! Measures how fast one reader gets the dataset's files from the disk.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use loader_core::internal::available;
use nix::{
    fcntl::{PosixFadviseAdvice, posix_fadvise},
    libc::O_DIRECT,
};

use super::report::{Check, Status, bytes};

/// At most so many bytes of so many files are read, for at most this time.
const MAX_BYTES: u64 = 256 << 20;
const MAX_FILES: usize = 4096;
const MAX_TIME: Duration = Duration::from_secs(3);
/// Number of bytes of one read.
const BLOCK: usize = 1 << 20;
/// Alignment of memory that O_DIRECT needs, at most.
const ALIGNMENT: usize = 4096;
/// Fewer bytes per second are worth a note.
const SLOW: f64 = 100e6;

/// Reads some of `files` and says how fast that was.
pub(super) fn check(files: &[PathBuf]) -> Check {
    const NAME: &str = "storage";
    let local: Vec<_> = files.iter().filter(|file| !file.to_string_lossy().contains("://")).collect();
    if local.is_empty() {
        let found = format!("{} files on a server", files.len());
        return Check::new(NAME, Status::Note, found, "their speed was not measured")
            .advice("look at `loader run --stop-after 100`");
    }
    let reading = match Reading::of(&local) {
        Ok(reading) => reading,
        Err((file, error)) => {
            let found = format!("`{}` cannot be read: {error}", file.display());
            return Check::new(NAME, Status::Error, found, "batches with its samples fail")
                .advice("fetch the file again, or check its permissions and the disk");
        }
    };
    let seconds = reading.time.as_secs_f64().max(1e-9);
    let (rate, files_per_second) = (reading.bytes as f64 / seconds, reading.files as f64 / seconds);
    let found = format!(
        "{} of {} files ({}) read in {:.1?} {}: {}/s, {files_per_second:.0} files/s",
        reading.files,
        local.len(),
        bytes(reading.bytes),
        reading.time,
        if reading.is_direct { "past the page cache (O_DIRECT)" } else { "after posix_fadvise(DONTNEED)" },
        bytes(rate as u64),
    );
    let memory = available().map(|memory| format!("; {} are free for the page cache", bytes(memory)));
    let meaning = format!(
        "this is one reader, 1 MiB at a time, and workers read side by side; later epochs may find files in the page \
         cache{}",
        memory.unwrap_or_default()
    );
    if rate < SLOW && reading.bytes > SLOW as u64 / 10 {
        Check::new(NAME, Status::Note, found, meaning)
            .advice("copy the data to a local disk, or pack small files with `loader pack`")
    } else {
        Check::new(NAME, Status::Ok, found, meaning)
    }
}

/// What was read.
#[derive(Debug, Default)]
struct Reading {
    files: usize,
    bytes: u64,
    time: Duration,
    /// True if no file was read through the page cache.
    is_direct: bool,
}

impl Reading {
    /// Reads files from all parts of the list until a limit is reached.
    fn of<'a>(files: &[&'a PathBuf]) -> Result<Self, (&'a Path, io::Error)> {
        let mut reading = Self { is_direct: true, ..Self::default() };
        let mut memory = vec![0; BLOCK + ALIGNMENT];
        let aligned = memory.as_ptr().align_offset(ALIGNMENT);
        let block = &mut memory[aligned..][..BLOCK];
        let begun = Instant::now();
        let is_enough = |reading: &Self| reading.bytes >= MAX_BYTES || begun.elapsed() >= MAX_TIME;
        for file in files.iter().step_by(files.len().div_ceil(MAX_FILES)) {
            if is_enough(&reading) {
                break;
            }
            reading.add(file, block, is_enough).map_err(|error| (file.as_path(), error))?;
        }
        reading.time = begun.elapsed();
        Ok(reading)
    }

    fn add(&mut self, path: &Path, block: &mut [u8], is_enough: impl Fn(&Self) -> bool) -> io::Result<()> {
        let before = self.bytes;
        let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path);
        let read = direct.and_then(|file| self.read(&file, block, &is_enough));
        // Some file systems have no O_DIRECT, or refuse the last part of a file. Other errors come again.
        if read.is_err() {
            (self.bytes, self.is_direct) = (before, false);
            let file = File::open(path)?;
            // A file system that ignores it makes the figure higher.
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            self.read(&file, block, &is_enough)?;
        }
        self.files += 1;
        Ok(())
    }

    fn read(
        &mut self,
        mut file: &File,
        block: &mut [u8],
        is_enough: impl Fn(&Self) -> bool,
    ) -> io::Result<()> {
        while !is_enough(self) {
            let read = file.read(block)?;
            self.bytes += read as u64;
            // Only the end of a file gives less.
            if read < block.len() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn whole_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = [0, 5, BLOCK, BLOCK + 5];
        let files = sizes.map(|size| folder.path().join(size.to_string()));
        for (file, size) in files.iter().zip(sizes) {
            fs::write(file, vec![1; size]).unwrap();
        }
        let reading = Reading::of(&files.each_ref()).unwrap();
        assert_eq!((reading.files, reading.bytes), (4, sizes.iter().sum::<usize>() as u64));
        let missing = folder.path().join("missing");
        assert_eq!(Reading::of(&[&missing]).unwrap_err().1.kind(), io::ErrorKind::NotFound);
    }
}
