//! Tests of audio, with files that libsndfile has written.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use loader_core::{DataLoader, Dataset, SampleContext, Tensor};
use loader_data::{AudioFolder, AudioTransform, DataError, DataProblem, RecordConfig, Records};
use proptest::prelude::*;

use crate::everywhere::{same_everywhere, write_old};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/fixtures/audio").join(name)).unwrap()
}

/// The samples that libsndfile reads, or that NumPy has computed.
fn expected(name: &str) -> Vec<f32> {
    let bytes = fixture(&format!("{name}.f32"));
    bytes.as_chunks().0.iter().map(|sample| f32::from_le_bytes(*sample)).collect()
}

fn decode(transform: &AudioTransform, file: &[u8]) -> Result<Tensor<f32>, DataProblem> {
    decode_with(transform, file, 7)
}

fn decode_with(transform: &AudioTransform, file: &[u8], seed: u64) -> Result<Tensor<f32>, DataProblem> {
    transform.decode(file, SampleContext::new(seed).rng())
}

fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn lossless_files_have_the_samples_that_libsndfile_reads() {
    for name in
        ["s16.wav", "u8.wav", "s24.wav", "s32.wav", "f32.wav", "f64.wav", "ulaw.wav", "s16.flac", "s24.flac"]
    {
        let audio = decode(&AudioTransform::new(16_000), &fixture(name)).unwrap();
        assert_eq!(audio.shape()[0], if name.starts_with("s16") { 2 } else { 1 }, "{name}");
        assert_eq!(audio.as_slice(), expected(name), "{name}");
    }
}

#[test]
fn lossy_files_differ_from_what_libsndfile_reads_by_rounding_only() {
    for (name, bound) in [("tone.mp3", 1e-6), ("tone.ogg", 1e-6)] {
        let audio = decode(&AudioTransform::new(16_000), &fixture(name)).unwrap();
        assert_eq!(audio.shape(), [2, 2000], "{name}");
        let difference = largest_difference(audio.as_slice(), &expected(name));
        assert!(difference < bound, "{name}: {difference}");
    }
}

#[test]
fn channels_of_vorbis_have_the_order_of_wav() {
    // In the file: front left, front centre, front right, back left, back right, low frequency.
    let audio = decode(&AudioTransform::new(8000), &fixture("surround.ogg")).unwrap();
    let largest = |channel: &[f32]| channel.iter().fold(0.0_f32, |largest, sample| largest.max(sample.abs()));
    let numbers: Vec<_> = audio
        .as_slice()
        .chunks(audio.shape()[1])
        .map(|channel| (0.9 / largest(channel)).log2().round() as usize)
        .collect();
    assert_eq!(numbers, [0, 2, 1, 5, 3, 4]);
}

#[test]
fn resampling_is_that_of_torchaudio() {
    for rate in [8_000, 11_025, 44_100] {
        let audio = decode(&AudioTransform::new(rate), &fixture("s16.wav")).unwrap();
        let expected = expected(&format!("resampled-{rate}"));
        let difference = largest_difference(&audio.as_slice()[..audio.shape()[1]], &expected);
        assert!(difference < 1e-6, "{rate}: {difference}");
    }
}

#[test]
fn mono_is_the_mean_of_the_channels() {
    let audio = decode(&AudioTransform::new(16_000).mono(), &fixture("s16.wav")).unwrap();
    let stereo = expected("s16.wav");
    let (left, right) = stereo.split_at(900);
    let mean: Vec<_> = left.iter().zip(right).map(|(left, right)| (left + right) / 2.0).collect();
    assert_eq!((audio.shape(), audio.as_slice()), ([1, 900].as_slice(), &*mean));
}

#[test]
fn a_crop_is_a_part_of_the_whole_file() {
    for name in ["noise.flac", "s16.wav", "tone.mp3", "tone.ogg"] {
        let file = fixture(name);
        for rate in [16_000, 44_100, 48_000, 7_919] {
            let transform = AudioTransform::new(rate).mono();
            let whole = decode(&transform, &file).unwrap();
            let center = decode(&transform.clone().center_crop(101), &file).unwrap();
            let start = (whole.shape()[1] - 101) / 2;
            assert_eq!(center.as_slice(), &whole.as_slice()[start..][..101], "{name} at {rate}");

            let mut starts: Vec<_> = (0..20)
                .map(|seed| {
                    let crop = decode_with(&transform.clone().random_crop(101), &file, seed).unwrap();
                    let is_here = |part: &[f32]| part == crop.as_slice();
                    whole
                        .as_slice()
                        .windows(101)
                        .position(is_here)
                        .unwrap_or_else(|| panic!("{name} at {rate}"))
                })
                .collect();
            starts.sort_unstable();
            starts.dedup();
            assert!(starts.len() >= 15, "{starts:?}");
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_the_crop_ends_with_zeros() {
    for transform in
        [AudioTransform::new(16_000).random_crop(1000), AudioTransform::new(16_000).center_crop(1000)]
    {
        for name in ["s16.wav", "s16.flac"] {
            let audio = decode(&transform, &fixture(name)).unwrap();
            assert_eq!(audio.shape(), [2, 1000]);
            let (left, right) = audio.as_slice().split_at(1000);
            let expected = expected("s16.wav");
            assert_eq!([&left[..900], &right[..900]].concat(), expected);
            assert!(left[900..].iter().chain(&right[900..]).all(|&sample| sample == 0.0));
        }
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let transform = AudioTransform::new(16_000);
    for name in ["s16.wav", "s16.flac", "noise.flac", "tone.mp3", "tone.ogg"] {
        let file = fixture(name);
        let starts = [0, 1, 4, 11, 12, 20, 36, 43, 44, 45, 100, 1000];
        for len in starts.into_iter().chain([file.len() / 2, file.len() - 100, file.len() - 1]) {
            let error = decode(&transform, &file[..len]).unwrap_err();
            let is_typed = matches!(
                error,
                DataProblem::Truncated | DataProblem::Malformed { .. } | DataProblem::Unsupported(_)
            );
            assert!(is_typed, "{name} with {len} bytes: {error:?}");
        }
        let error = decode(&transform, &file[..file.len() - 1]).unwrap_err();
        assert!(matches!(error, DataProblem::Truncated), "{name}: {error:?}");
    }
}

#[test]
fn an_mp3_may_have_tags_and_zeros_before_its_first_frame() {
    let transform = AudioTransform::new(16_000);
    let (mp3, flac) = (fixture("tone.mp3"), fixture("s16.flac"));
    // The size of a tag has 7 bits in each byte. A footer has 10 bytes.
    let tag = [&b"ID3\x04\0\0\0\0\x01\x02"[..], &[1; 130]].concat();
    let tag_with_footer = [&b"ID3\x04\0\x10\0\0\0\x05"[..], &[1; 15]].concat();
    let zeros = vec![0; 4096];
    for before in [
        tag.clone(),
        [&tag[..], &tag_with_footer, &tag].concat(),
        zeros[..1].to_vec(),
        zeros.clone(),
        [&tag[..], &zeros[..300]].concat(),
    ] {
        let audio = decode(&transform, &[&before[..], &mp3].concat()).unwrap();
        assert_eq!(audio.as_slice(), decode(&transform, &mp3).unwrap().as_slice(), "{} bytes", before.len());
    }
    for file in [[&[0][..], &zeros, &mp3].concat(), [&[0][..], &flac].concat()] {
        assert!(matches!(decode(&transform, &file), Err(DataProblem::Unsupported(_))));
    }
    assert!(matches!(decode(&transform, &tag.repeat(2)), Err(DataProblem::Truncated)));
    assert!(matches!(decode(&transform, &zeros[..300]), Err(DataProblem::Truncated)));
}

/// A WAV with other sizes of the chunks `RIFF` and `data`, and 0 as the number of frames in `fact`.
fn with_sizes(name: &str, riff: u32, data: u32) -> Vec<u8> {
    let mut file = fixture(name);
    for (chunk, place, number) in [(b"RIFF", 4, riff), (b"fact", 8, 0), (b"data", 4, data)] {
        if let Some(start) = file.windows(4).position(|name| name == chunk) {
            file[start + place..][..4].copy_from_slice(&number.to_le_bytes());
        }
    }
    file
}

#[test]
fn a_wav_without_a_length_has_all_its_frames() {
    // FFmpeg, sox with frames of 2 and 3 bytes, arecord in two versions, and a RIFF size of 31 bits.
    let sizes = [u32::MAX, 0x7fff_f000, 0x7fff_efff, 0x7fff_ff00, 0x8000_0000, 0x7fff_ff9b];
    let whole = AudioTransform::new(16_000);
    let transforms = [whole.clone(), whole.clone().center_crop(101), whole.clone().random_crop(101)];
    for data in sizes {
        for name in ["s16.wav", "s24.wav", "f32.wav", "ulaw.wav"] {
            let mut streamed = with_sizes(name, data.saturating_add(100), data);
            for transform in &transforms {
                let expected = decode(transform, &fixture(name)).unwrap();
                let audio = decode(transform, &streamed).unwrap();
                assert_eq!(audio.as_slice(), expected.as_slice(), "{name} with {data:#x}");
            }
            let start = streamed.windows(4).position(|name| name == b"data").unwrap() + 8;
            streamed.truncate(start);
            assert!(matches!(decode(&whole, &streamed), Err(DataProblem::Truncated)), "{name}");
        }
    }
    for (riff, data) in [(u32::MAX, 0x0e14), (0x7000_0024, 0x7000_0000), (0x9000_0024, 0x9000_0000)] {
        let error = decode(&whole, &with_sizes("s16.wav", riff, data)).unwrap_err();
        assert!(matches!(error, DataProblem::Truncated), "{riff:#x} and {data:#x}: {error:?}");
    }
}

#[test]
fn what_cannot_be_decoded_is_an_error() {
    let transform = AudioTransform::new(16_000);
    let unsupported = |file: &[u8]| match decode(&transform, file).unwrap_err() {
        DataProblem::Unsupported(reason) => reason,
        other => panic!("{other:?}"),
    };
    let text = "the content is not WAV, FLAC, MP3 or Ogg; convert it or remove it";
    assert_eq!(unsupported(b"\x89PNG\r\n\x1a\n and more"), text);
    assert_eq!(unsupported(b"RIFF\x20\0\0\0AVI  and more"), text);
    unsupported(&fixture("adpcm.wav"));
    unsupported(&fixture("opus.ogg"));

    // Channels are at byte 22 of the header, the rate at byte 24.
    for (place, bytes) in [(22, &[0, 0][..]), (22, &[0xff, 0xff]), (24, &[0; 4]), (24, &[0xff; 4])] {
        let mut file = fixture("s16.wav");
        file[place..place + bytes.len()].copy_from_slice(bytes);
        let error = decode(&transform, &file).unwrap_err();
        assert!(matches!(error, DataProblem::Malformed { format: "WAV" | "audio", .. }), "{error:?}");
    }
    // The sizes in the header of a recording that was cut off are still 0.
    for riff in [0, 0xe34] {
        for transform in [transform.clone(), transform.clone().random_crop(100)] {
            let error = decode(&transform, &with_sizes("s16.wav", riff, 0)).unwrap_err();
            assert!(error.to_string().contains("the size in its header is 0"), "{error}");
        }
    }
    let error = decode(&transform, &[fixture("tone.mp3"), fixture("tone.mp3")].concat()).unwrap_err();
    assert!(error.to_string().contains("it has more than the 2000 frames"), "{error}");

    let mut damaged = fixture("noise.flac");
    damaged[9_000..9_100].fill(0x55);
    let error = decode(&transform, &damaged).unwrap_err();
    assert!(matches!(error, DataProblem::Malformed { format: "FLAC", .. }), "{error:?}");
}

#[test]
fn a_file_cannot_claim_more_memory_than_allowed() {
    let small = AudioTransform::new(16_000).max_sample_bytes(7_199);
    for name in ["s16.wav", "s16.flac", "tone.mp3", "tone.ogg"] {
        let error = decode(&small, &fixture(name)).unwrap_err();
        assert!(
            matches!(error, DataProblem::TooLarge { max: 7_199, option: "max_sample_bytes", .. }),
            "{error:?}"
        );
    }
    let upsampled = AudioTransform::new(768_000).mono().max_sample_bytes(7_200);
    assert!(matches!(
        decode(&upsampled, &fixture("s16.wav")),
        Err(DataProblem::TooLarge { len: 172_800, .. })
    ));

    // The number of frames has 36 bits, which end at byte 26.
    let mut long = fixture("noise.flac");
    long[22..26].fill(0xff);
    let crop = AudioTransform::new(44_100).random_crop(1000);
    assert!(decode(&crop, &long).is_err());
    assert!(matches!(decode(&AudioTransform::new(44_100), &long), Err(DataProblem::Truncated)));

    for (transform, option) in [
        (AudioTransform::new(0), "sample_rate"),
        (AudioTransform::new(768_001), "sample_rate"),
        (AudioTransform::new(1).center_crop(0), "crop"),
    ] {
        let error = decode(&transform, &fixture("s16.wav")).unwrap_err();
        assert!(
            matches!(error, DataProblem::InvalidOption { option: found, .. } if found == option),
            "{error:?}"
        );
    }
}

proptest! {
    /// Neither the samples nor the error matter, only that there is no panic.
    #[test]
    fn damaged_files_do_not_panic(
        name in prop::sample::select(vec!["s16.wav", "s16.flac", "noise.flac", "tone.mp3", "tone.ogg"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        header in prop::collection::vec((0..60_usize, any::<u8>()), 0..4),
        rate in 1_000..100_000_u32,
        seed: u64,
    ) {
        let mut file = fixture(name);
        for (place, byte) in changes {
            let place = place.index(file.len());
            file[place] = byte;
        }
        for (place, byte) in header {
            file[place] = byte;
        }
        let limited = AudioTransform::new(rate).max_sample_bytes(1 << 22);
        drop(decode_with(&limited, &file, seed));
        drop(decode_with(&limited.random_crop(500), &file, seed));
    }
}

/// Writes a folder of files with two classes, and returns its path.
fn folder_of(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("commands");
    for (path, name) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_old(&path, &fixture(name));
    }
    (folder, root)
}

fn transform() -> AudioTransform {
    AudioTransform::new(16_000).mono().random_crop(300)
}

#[test]
fn sub_folders_are_classes() {
    let files = [
        ("yes/b/1.FLAC", "s16.flac"),
        ("yes-no/2.wav", "s16.wav"),
        ("no/3.mp3", "tone.mp3"),
        ("no/x.txt", "u8.wav"),
    ];
    let (_folder, root) = folder_of(&files);
    for root in [root.clone(), format!("{}/", root.display()).into()] {
        let commands = AudioFolder::open(root, transform()).unwrap();
        assert_eq!(
            (commands.len(), commands.classes()),
            (3, &["no", "yes", "yes-no"].map(str::to_owned)[..])
        );
        assert_eq!(commands.labels().collect::<Vec<_>>(), [0, 2, 1], "files are ordered by path");
        assert_eq!(commands.label(3), None);
        let (audio, label) = commands.get(2, &mut SampleContext::new(7)).unwrap();
        assert_eq!(
            (audio.as_slice(), label),
            (decode(&transform(), &fixture("s16.flac")).unwrap().as_slice(), 1)
        );
        assert!(commands.get(3, &mut SampleContext::new(7)).is_err());
    }
    let fingerprint = |root: &Path, transform| AudioFolder::open(root, transform).unwrap().fingerprint();
    let before = fingerprint(&root, transform());
    assert_ne!(fingerprint(&root, transform().max_sample_bytes(1 << 20)), before);
    fs::rename(root.join("no/3.mp3"), root.join("yes/3.mp3")).unwrap();
    fs::remove_dir_all(root.join("no")).unwrap();
    assert_ne!(fingerprint(&root, transform()), before);
    // The name of a class may look like that of a partition.
    fs::rename(root.join("yes"), root.join("word=yes")).unwrap();
    assert_eq!(AudioFolder::open(&root, transform()).unwrap().classes(), ["word=yes", "yes-no"]);
}

#[test]
fn classes_whose_names_differ_only_in_bytes_that_are_not_unicode_are_refused() {
    let (_folder, root) = folder_of(&[("yes/1.wav", "s16.wav")]);
    let add = |name: &[u8]| {
        let class = root.join(OsStr::from_bytes(name));
        fs::create_dir(&class).unwrap();
        write_old(&class.join("1.wav"), &fixture("s16.wav"));
    };
    add(b"caf\xE9");
    let commands = AudioFolder::open(&root, transform()).unwrap();
    assert_eq!(commands.classes(), ["caf\u{fffd}", "yes"]);
    add(b"caf\xE8");
    for root in [root.clone(), root.join("../commands/")] {
        let error = AudioFolder::open(&root, transform()).unwrap_err();
        assert!(
            matches!(&error.problem, DataProblem::SameClass { class } if class == "caf\u{fffd}"),
            "{error}"
        );
        assert!(error.file.ends_with("/caf\u{fffd}/1.wav`"), "{error}");
    }
}

#[test]
fn a_folder_without_classes_is_an_error() {
    let (_folder, root) = folder_of(&[("yes/1.wav", "s16.wav")]);
    let problem = || AudioFolder::open(&root, transform()).unwrap_err().problem;
    fs::create_dir(root.join("no")).unwrap();
    assert!(matches!(problem(), DataProblem::EmptyClass { class, .. } if class == "no"));
    nix::unistd::mkfifo(&root.join("no/2.wav"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(problem(), DataProblem::NotAFile { found: "a named pipe" }));
    fs::remove_file(root.join("no/2.wav")).unwrap();
    write_old(&root.join("2.wav"), &fixture("s16.wav"));
    assert!(matches!(problem(), DataProblem::NoClass { .. }));
    let open = |path| AudioFolder::open(root.join(path), transform()).unwrap_err().problem;
    assert!(matches!(open("no"), DataProblem::NoFiles { .. }));
    assert!(matches!(open("maybe"), DataProblem::NotFound));
    assert!(matches!(open("2.wav"), DataProblem::NoClass { .. }));
    let error = AudioFolder::open(&root, AudioTransform::new(0)).unwrap_err();
    assert!(matches!(error.problem, DataProblem::InvalidOption { option: "sample_rate", .. }));
}

#[test]
fn a_bad_file_is_named() {
    let (_folder, root) = folder_of(&[("no/1.ogg", "opus.ogg"), ("yes/2.wav", "s16.wav")]);
    let commands = AudioFolder::open(&root, transform()).unwrap();
    let error = |index| {
        let error = commands.get(index, &mut SampleContext::new(7)).unwrap_err();
        error.downcast::<DataError>().unwrap()
    };
    let unsupported = error(0);
    assert_eq!(unsupported.file, format!("`{}`", root.join("no/1.ogg").display()));
    assert!(matches!(unsupported.problem, DataProblem::Unsupported(_)), "{unsupported}");
    fs::write(root.join("yes/2.wav"), "shorter").unwrap();
    let changed = error(1);
    assert!(matches!(changed.problem, DataProblem::Changed { .. }), "{changed}");
}

#[test]
fn a_folder_gives_the_same_batches_everywhere() {
    let names = ["s16.wav", "s16.flac", "noise.flac", "tone.mp3", "tone.ogg"];
    let paths: Vec<_> = (0..40).map(|file| format!("{}/{file:02}-{}", file % 3, names[file % 5])).collect();
    let files: Vec<_> =
        paths.iter().zip(names.iter().cycle()).map(|(path, name)| (path.as_str(), *name)).collect();
    let (_folder, root) = folder_of(&files);
    let commands = AudioFolder::open(root, transform()).unwrap();
    let batches = same_everywhere(|workers| {
        let loader = DataLoader::builder(commands.clone()).batch_size(4).shuffle(true).seed(3);
        loader.num_workers(workers).build().unwrap()
    });
    assert_eq!(batches.len(), 10);
    for (audio, labels) in &batches {
        assert_eq!((audio.shape(), labels.shape()), ([4, 1, 300].as_slice(), [4].as_slice()));
    }
}

#[test]
fn a_config_names_a_folder() {
    let (folder, _root) = folder_of(&[("no/1.wav", "s16.wav"), ("yes/2.flac", "s16.flac")]);
    let text =
        r#"{"kind": "audio-folder", "path": "commands", "sample_rate": 8000, "crop": {"center": 100}}"#;
    let mut config: RecordConfig = serde_json::from_str(text).unwrap();
    config.relative_to(&folder);
    assert_eq!(config.files().unwrap().len(), 2);
    let Records::Map(records) = config.open().unwrap() else { panic!("a folder is map-style") };
    let record = records.get(1, &mut SampleContext::new(7)).unwrap();
    let audio = decode(&AudioTransform::new(8_000).center_crop(100), &fixture("s16.flac")).unwrap();
    assert_eq!((record.get("audio"), record.get("label")), (Some(&audio.into()), Some(&1i64.into())));

    for wrong in [text.replace("crop", "cut"), text.replace("sample_rate", "samplerate")] {
        assert!(serde_json::from_str::<RecordConfig>(&wrong).is_err(), "{wrong}");
    }
}
