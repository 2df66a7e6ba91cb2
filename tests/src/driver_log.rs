//! What the stub of the CUDA driver was called for: see `driver-stub`.

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
    /// Calls that were wrong.
    pub wrong: Vec<String>,
    /// Length of each range that is registered now, by its start.
    pub ranges: BTreeMap<usize, usize>,
}

impl DriverLog {
    /// What process `pid` wrote so far; nothing when there is no such file.
    pub fn read(path: impl AsRef<Path>, pid: u32) -> Self {
        let mut log = Self::default();
        let text = fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [caller, call, first, second] = fields[..] else { panic!("a broken line: {line}") };
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

    /// True when all of `bytes` lies in one registered range.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        let first = bytes.as_ptr() as usize;
        let range = self.ranges.range(..=first).next_back();
        range.is_some_and(|(start, len)| first + bytes.len() <= start + len)
    }
}
