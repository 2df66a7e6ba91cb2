//! Reads whole files up to a maximum size, such as configs, states, profiles and manifests.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Reads a file, which may be a pipe. Reads at most one byte more than `max`, because a device such as `/dev/zero`
/// has no end.
///
/// # Errors
/// Returns an error of the kind [`FileTooLarge`](io::ErrorKind::FileTooLarge) if the file has more than `max`
/// bytes, and other errors if it cannot be read.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let problem = format!("it has more than {max} bytes, the maximum for such a file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// As [`read`], for a text.
///
/// # Errors
/// As [`read`], and if the text is not UTF-8.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused_and_a_pipe_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
        fs::write(&file, "text").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "text");
        for (path, max) in [(&*file, 3), (Path::new("/dev/zero"), 1 << 20)] {
            let error = read(path, max).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            assert!(error.to_string().contains(&format!("more than {max} bytes")), "{error}");
        }
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| fs::write(&pipe, "text").unwrap());
            assert_eq!(read_text(&pipe, 4).unwrap(), "text");
        });
        fs::write(&file, [0xff]).unwrap();
        assert_eq!(read_text(&file, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
