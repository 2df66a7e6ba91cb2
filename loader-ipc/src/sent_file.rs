//! Open files of main that workers get with the dataset.

use std::{
    io,
    os::fd::{OwnedFd, RawFd},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::{attach, held_fd::HeldFd, sys};

/// An open file of main, of any kind: memory, a socket, an end of a pipe. As a part of a dataset, it is sent to
/// each worker as a descriptor of the same open file, with the position and the flags that main's descriptor
/// has.
///
/// Alternative considered: the path `/proc/<pid of main>/fd/<number>`, which a worker opens. Rejected because
/// the path may name a file of another process (in a PID namespace with the `/proc` of another one), is not
/// accessible after main has changed its user or has made itself not dumpable, and cannot be opened for a
/// socket.
#[derive(Debug, Clone)]
pub struct SentFile(Arc<HeldFd>);

impl SentFile {
    /// The file that this process has open under `number`. The `SentFile` has a descriptor of its own, so the
    /// program may close `number`.
    ///
    /// # Errors
    /// If `number` is not open, or this process is out of descriptors.
    pub fn of(number: RawFd) -> io::Result<Self> {
        sys::duplicate(number).map(|fd| Self(Arc::new(HeldFd::new(fd))))
    }

    /// Returns another descriptor of the file.
    ///
    /// # Errors
    /// If this process is out of descriptors, or the program has closed the file's.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.get()?.try_clone_to_owned()
    }
}

impl Serialize for SentFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = attach::attach_file(&self.0);
        number.ok_or_else(|| ser::Error::custom("a file is sent with a dataset only"))?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SentFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = attach::file(u32::deserialize(deserializer)?);
        file.map(Self).ok_or_else(|| de::Error::custom("the file was not sent"))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::fd::AsRawFd,
    };

    use super::*;
    use crate::codec;

    #[test]
    fn a_file_is_sent_once_and_is_the_same_open_file() {
        let (reader, mut writer) = io::pipe().unwrap();
        let file = SentFile::of(reader.as_raw_fd()).unwrap();
        drop(reader);
        let (bytes, attached) = attach::encode(&(&file, &file)).unwrap();
        assert_eq!(attached.files.len(), 1);
        let (one, two): (SentFile, SentFile) = attach::decode(&bytes, attached).unwrap();
        writer.write_all(b"ab").unwrap();
        for (file, letter) in [(one, b"a"), (two, b"b")] {
            let mut found = [0];
            File::from(file.to_fd().unwrap()).read_exact(&mut found).unwrap();
            assert_eq!(&found, letter);
        }
    }

    #[test]
    fn a_file_without_a_dataset_and_a_closed_number_are_errors() {
        let (reader, _writer) = io::pipe().unwrap();
        let file = SentFile::of(reader.as_raw_fd()).unwrap();
        assert!(codec::encode(&file).is_err() && codec::decode::<SentFile>(&[0; 4]).is_err());
        assert_eq!(SentFile::of(-1).unwrap_err().raw_os_error(), Some(nix::libc::EBADF));
        assert!(SentFile::of(RawFd::MAX).is_err());
    }
}
