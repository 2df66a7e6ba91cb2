//! The log of calls that the stub of the CUDA driver writes: see `driver-stub`.

use std::{collections::BTreeMap, fs, path::Path};

/// The calls of one process.
#[derive(Debug, Default)]
pub struct DriverLog {
    /// Registrations made.
    pub registered: usize,
    /// Registrations ended.
    pub unregistered: usize,
    /// Devices whose primary context was retained.
    pub retained: Vec<usize>,
    /// Primary contexts released.
    pub released: Vec<usize>,
    /// Lines of wrong calls.
    pub wrong: Vec<String>,
    /// Ranges that are registered now: length by start.
    pub ranges: BTreeMap<usize, usize>,
}

impl DriverLog {
    /// Reads the calls that process `pid` has logged so far. Without the file there are none.
    pub fn read(path: impl AsRef<Path>, pid: u32) -> Self {
        let mut log = Self::default();
        let text = fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [caller, call, first, second] = fields[..] else { panic!("malformed line: {line}") };
            if caller != pid.to_string() {
                continue;
            }
            let (first, second) = (first.parse().expect("a number"), second.parse().expect("a number"));
            match call {
                "register" => {
                    log.registered += 1;
                    log.ranges.insert(first, second);
                }
                "unregister" => {
                    log.unregistered += 1;
                    log.ranges.remove(&first);
                }
                "retain" => log.retained.push(first),
                "release" => log.released.push(first),
                _ => log.wrong.push(line.to_owned()),
            }
        }
        log
    }

    /// True if one registered range contains all of `bytes`.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        let first = bytes.as_ptr() as usize;
        let range = self.ranges.range(..=first).next_back();
        range.is_some_and(|(start, len)| first + bytes.len() <= start + len)
    }
}
