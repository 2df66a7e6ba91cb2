//! Groups the members of an archive into samples.

use super::{
    KEY, URL,
    members::{Member, Members},
    name::{is_metadata, key_and_field},
};
use crate::{
    error::{DataError, DataProblem, Result},
    shard_items::ItemError,
};

/// Maximum number of fields of a sample.
const MAX_FIELDS: usize = 10_000;

/// The members of one sample.
#[derive(Debug, PartialEq)]
pub(super) struct RawSample {
    /// Offset of the headers of its first member in the archive.
    pub(super) start: u64,
    /// A key that is not Unicode has U+FFFD in place of its invalid bytes.
    pub(super) key: String,
    /// The wanted fields in the order of the archive, with their data.
    pub(super) fields: Vec<(String, Vec<u8>)>,
}

/// Which members are read.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) is_wanted: &'a dyn Fn(&str) -> bool,
    /// Maximum number of bytes of the wanted members of a sample.
    pub(super) max_sample_bytes: u64,
}

/// Reads the samples of an archive in order.
#[derive(Debug)]
pub(super) struct Samples {
    members: Members,
    /// The first member of the next sample. Its data has not been read.
    ahead: Option<Member>,
    has_ended: bool,
}

impl Samples {
    pub(super) fn new(members: Members) -> Self {
        Self { members, ahead: None, has_ended: false }
    }

    /// Offset from which the samples that follow can be read, or `None` if it is known that there are none.
    pub(super) fn position(&self) -> Option<u64> {
        let next = self.ahead.as_ref().map_or(self.members.position(), |member| member.start);
        (!self.has_ended).then_some(next)
    }

    /// Offset of the end of the last member.
    pub(super) fn end(&self) -> u64 {
        self.members.position()
    }

    /// True if the first member of another sample was found.
    pub(super) fn has_more(&self) -> bool {
        self.ahead.is_some()
    }

    /// Reads the next sample. If an error concerns the archive and not only the sample, this returns `None`
    /// afterwards.
    pub(super) fn next(&mut self, wanted: Wanted<'_>) -> Option<Result<RawSample, ItemError>> {
        let sample = self.read(wanted).map_err(ItemError::Rest).transpose()?;
        self.has_ended |= sample.is_err();
        Some(sample.and_then(|sample| sample.map_err(ItemError::Sample)))
    }

    /// Returns the sample or what is wrong with it.
    ///
    /// # Errors
    /// Returns an error if the archive is damaged.
    fn read(&mut self, wanted: Wanted<'_>) -> Result<Option<Result<RawSample>>> {
        let Some(mut member) = self.next_member()? else { return Ok(None) };
        let key = key_of(&member).to_vec();
        let sample = RawSample {
            start: member.start,
            key: String::from_utf8_lossy(&key).into_owned(),
            fields: Vec::new(),
        };
        let mut group = Group { sample, bytes: 0, error: None };
        loop {
            group.add(&mut self.members, &member, wanted)?;
            match self.next_member()? {
                Some(next) if key_of(&next) == key => member = next,
                other => {
                    self.ahead = other;
                    return Ok(Some(group.error.map_or(Ok(group.sample), Err)));
                }
            }
        }
    }

    /// Returns the next member that belongs to a sample.
    fn next_member(&mut self) -> Result<Option<Member>> {
        if let Some(member) = self.ahead.take() {
            return Ok(Some(member));
        }
        while !self.has_ended {
            let Some(member) = self.members.next()? else {
                self.has_ended = true;
                break;
            };
            if member.is_file && !is_metadata(&member.name) && key_and_field(&member.name).is_some() {
                return Ok(Some(member));
            }
        }
        Ok(None)
    }
}

fn key_of(member: &Member) -> &[u8] {
    key_and_field(&member.name).map_or(&[], |(key, _)| key)
}

/// A sample while its members are read.
struct Group {
    sample: RawSample,
    /// Number of bytes of the fields.
    bytes: u64,
    /// The first thing that is wrong with the sample. Its other members are still skipped one by one.
    error: Option<DataError>,
}

impl Group {
    fn add(&mut self, members: &mut Members, member: &Member, wanted: Wanted<'_>) -> Result<()> {
        let (_, field) = key_and_field(&member.name).unwrap_or_default();
        let field = String::from_utf8_lossy(field).to_lowercase();
        if self.error.is_some() || !(wanted.is_wanted)(&field) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(member.size);
        match self.problem(&field, wanted.max_sample_bytes) {
            Some(problem) => self.error = Some(members.error(member, problem)),
            None => self.sample.fields.push((field, members.data(member)?)),
        }
        Ok(())
    }

    fn problem(&self, field: &str, max: u64) -> Option<DataProblem> {
        let fields = &self.sample.fields;
        if [KEY, URL].contains(&field) || fields.iter().any(|(name, _)| name == field) {
            return Some(DataProblem::DuplicateField { field: field.to_owned() });
        }
        if self.bytes > max {
            return Some(DataProblem::TooLarge { len: self.bytes, max, option: "max_sample_bytes" });
        }
        let reason = || format!("the sample has more than {MAX_FIELDS} fields");
        (fields.len() == MAX_FIELDS)
            .then(|| DataProblem::Malformed { format: "WebDataset", reason: reason() })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::Path};

    use proptest::prelude::*;
    use tar::{Builder, EntryType, Header};

    use super::*;
    use crate::{error::Position, formats::tar_shards::members::End, source::Files};

    const ALL: Wanted<'static> = Wanted { is_wanted: &|_| true, max_sample_bytes: 1 << 20 };

    /// Writes `bytes` to a file and reads its samples.
    fn read(bytes: &[u8], name: &str, end: End, wanted: Wanted<'_>) -> Vec<Result<RawSample>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        read_file(&path, 0, end, wanted)
    }

    fn read_file(path: &Path, start: u64, end: End, wanted: Wanted<'_>) -> Vec<Result<RawSample>> {
        let blob = Files::list([path], &[]).unwrap().open(0).unwrap();
        let mut samples = match Members::open(&blob, None, start, end) {
            Ok(members) => Samples::new(members),
            Err(error) => return vec![Err(error)],
        };
        let mut found = Vec::new();
        while let Some(sample) = samples.next(wanted) {
            found.push(sample.map_err(ItemError::into_error));
        }
        assert!(samples.position().is_none() && samples.next(wanted).is_none());
        found
    }

    fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (name, data) in members {
            let mut header = Header::new_gnu();
            header.set_size(data.len() as u64);
            tar.append_data(&mut header, name, *data).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn keys(samples: &[Result<RawSample>]) -> Vec<&str> {
        samples.iter().map(|sample| sample.as_ref().map_or("error", |sample| &sample.key)).collect()
    }

    const NO_MEMBERS: &[(&str, &[u8])] = &[];

    #[test]
    fn only_adjacent_members_form_a_sample() {
        let bytes =
            tar(&[("a.x", b"1"), ("b.x", b"2"), ("__m__", b""), ("b.Y", b"3"), ("c", b""), ("a.y", b"4")]);
        let samples = read(&bytes, "a.tar", End::Marker, ALL);
        assert_eq!(keys(&samples), ["a", "b", "a"]);
        let fields = [("x".to_owned(), b"2".to_vec()), ("y".to_owned(), b"3".to_vec())];
        assert_eq!(samples[1].as_ref().unwrap().fields, fields);

        let wanted = Wanted { is_wanted: &|field| field == "y", ..ALL };
        let samples = read(&bytes, "a.tar", End::Marker, wanted);
        assert_eq!(samples[1].as_ref().unwrap().fields, fields[1..]);
        assert!(read(&tar(NO_MEMBERS), "a.tar", End::Marker, ALL).is_empty());
    }

    #[test]
    fn a_wrong_sample_does_not_harm_the_next() {
        let large = vec![0; 1 << 20];
        let bytes = tar(&[
            ("a.x", b"1"),
            ("a.X", b"2"),
            ("b.x", &large),
            ("b.y", b"2"),
            ("c.__key__", b""),
            ("d.x", b"3"),
        ]);
        let samples = read(&bytes, "a.tar", End::Marker, ALL);
        assert_eq!(keys(&samples), ["error", "error", "error", "d"]);
        let error = |sample: usize| samples[sample].as_ref().unwrap_err();
        assert_eq!(error(0).position, Position::Member("a.X".to_owned()));
        assert!(matches!(&error(0).problem, DataProblem::DuplicateField { field } if field == "x"));
        let len = (1 << 20) + 1;
        assert!(
            matches!(error(1).problem, DataProblem::TooLarge { len: found, max: 1_048_576, .. } if found == len)
        );
        assert!(matches!(&error(2).problem, DataProblem::DuplicateField { field } if field == "__key__"));
    }

    #[test]
    fn an_archive_cut_off_anywhere_is_an_error() {
        let bytes = tar(&[("a.x", &[1; 600]), ("a.y", b"2"), (&"long/".repeat(40), b""), ("b.x", b"3")]);
        let members_end = bytes.len() - 1024;
        for len in 0..bytes.len() - 1023 {
            if len % 512 > 3 && len % 97 != 0 {
                continue;
            }
            let samples = read(&bytes[..len], "a.tar", End::Marker, ALL);
            let error = samples.last().unwrap().as_ref().unwrap_err();
            assert!(matches!(error.problem, DataProblem::Truncated), "cut off after {len}: {error}");
            assert_ne!(error.position, Position::File);
            assert!(samples.len() <= 2, "cut off after {len}: {:?}", keys(&samples));
        }
        assert_eq!(keys(&read(&bytes[..members_end], "a.tar", End::Any, ALL)), ["a", "b"]);
        assert_eq!(keys(&read(&bytes[..members_end + 512], "a.tar", End::Marker, ALL)), ["a", "b"]);
        let joined = [&bytes[..], &bytes].concat();
        let samples = read(&joined, "a.tar", End::Any, ALL);
        let error = samples[1].as_ref().unwrap_err().to_string();
        assert!(error.contains("data after the end of the archive"), "{error}");
    }

    #[test]
    fn damaged_headers_are_errors_with_their_offset() {
        let mut bytes = tar(&[("a.x", b"1"), ("b.x", b"2"), ("c.x", b"3")]);
        bytes[1024 + 3] ^= 1;
        let samples = read(&bytes, "a.tar", End::Marker, ALL);
        assert_eq!(keys(&samples), ["error"], "whether sample `a` has more members is not known");
        let error = samples[0].as_ref().unwrap_err();
        assert_eq!(error.position, Position::Offset(1024));
        assert!(error.to_string().contains("checksum"), "{error}");

        let error =
            |bytes: &[u8], name: &str| read(bytes, name, End::Marker, ALL).remove(0).unwrap_err().problem;
        assert!(matches!(error(b"", "a.tar"), DataProblem::Truncated));
        assert!(matches!(error(&[7; 2000], "a.tar"), DataProblem::Malformed { format: "tar", .. }));
        assert!(matches!(error(&[7; 2000], "a.tar.gz"), DataProblem::Malformed { format: "gzip", .. }));
        assert!(matches!(error(&[7; 2000], "a.tar.zst"), DataProblem::Malformed { format: "Zstandard", .. }));
        for start in [&b"BZh91AY&SY"[..], b"\xfd7zXZ\0", b"PK\x03\x04", b"\x04\x22\x4d\x18"] {
            assert!(matches!(error(start, "a.tar"), DataProblem::Unsupported(_)));
        }
        let huge = Header::new_gnu();
        let lie = |size: u64, kind: EntryType| {
            let mut header = huge.clone();
            header.set_path("a.x").unwrap();
            header.set_size(size);
            header.set_entry_type(kind);
            header.set_cksum();
            [header.as_bytes().as_slice(), &[0; 2048]].concat()
        };
        for size in [3000, 1 << 40, u64::MAX - 600, u64::MAX] {
            let unlimited = Wanted { max_sample_bytes: u64::MAX, ..ALL };
            let found =
                read(&lie(size, EntryType::Regular), "a.tar", End::Marker, unlimited).remove(0).unwrap_err();
            assert!(
                matches!(found.problem, DataProblem::Truncated | DataProblem::Malformed { .. }),
                "{found}"
            );
        }
        assert!(matches!(error(&lie(1 << 40, EntryType::GNULongName), "a.tar"), DataProblem::Truncated));
        let bomb = [&lie(1 << 40, EntryType::GNULongName)[..], &vec![b'x'; 2 << 20]].concat();
        assert!(
            matches!(error(&bomb, "a.tar"), DataProblem::Malformed { reason, .. } if reason.contains("1 MiB"))
        );
    }

    #[test]
    fn reading_continues_at_the_position_after_any_sample() {
        let long = "n".repeat(200);
        let bytes =
            tar(&[("a.x", b"1"), (&format!("{long}.x"), b"2"), (&format!("{long}.y"), b"3"), ("c.x", b"4")]);
        let folder = tempfile::tempdir().unwrap();
        let gzip = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        for (name, bytes) in [("a.tar", bytes.clone()), ("a.tar.gz", gzip(&bytes))] {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            let blob = Files::list([&path], &[]).unwrap().open(0).unwrap();
            let mut samples = Samples::new(Members::open(&blob, None, 0, End::Marker).unwrap());
            let mut expected = vec!["a", &long, "c"];
            while samples.next(ALL).is_some() {
                expected.remove(0);
                let Some(position) = samples.position() else { break };
                let rest = read_file(&path, position, End::Marker, ALL);
                assert_eq!(keys(&rest), expected, "{name} from {position}");
            }
            assert!(expected.is_empty());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000), name in 0..3usize) {
            read(&bytes, ["a.tar", "a.tar.gz", "a.tar.zst"][name], End::Any, ALL);
        }

        #[test]
        fn changed_archives_never_panic(
            file in 0..6usize,
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            in_headers: bool,
        ) {
            let names = ["gnu.tar", "pax.tar", "sparse.tar", "sparse-pax.tar", "gnu.tar.gz", "two-frames.tar.zst"];
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/fixtures/tar");
            let mut bytes = fs::read(fixtures.join(names[file])).unwrap();
            for (index, value) in changes {
                let offset = index.index(bytes.len());
                bytes[offset] = value;
                // Most changes only break a checksum; so some of them are given the right one.
                let block = offset / 512 * 512;
                if in_headers && let Some(block) = bytes.get_mut(block..block + 512) && file < 4 {
                    block[148..156].fill(b' ');
                    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
                    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                }
            }
            read(&bytes, names[file], End::Any, ALL);
        }
    }
}
