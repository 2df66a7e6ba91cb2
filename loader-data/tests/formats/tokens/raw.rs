//! Files without header.

use loader_core::{DType, DataLoader, Dataset, OnBadSample, SampleContext};
use loader_data::{DataError, DataProblem, Position, Tokens};

use super::{all, fixture, windows, written};
use crate::everywhere::{refuses_what_is_no_file, same_everywhere, watched};

#[test]
fn files_that_numpy_wrote_read_back_equal() {
    let one = written(1000);
    for (name, dtype) in [("u16.bin", DType::U16), ("u32.bin", DType::U32), ("i32.bin", DType::I32)] {
        let tokens = Tokens::<i64>::open(fixture(name), dtype, 65).unwrap().vocabulary(50_257);
        assert_eq!(tokens.total_tokens(), 1000);
        assert!(all(&tokens).iter().map(|sample| sample.as_slice()).eq(windows(&one, 65, 64)), "{name}");
    }
    let bytes = Tokens::<u16>::open(fixture("u8.bin"), DType::U8, 10).unwrap().stride(1).unwrap();
    let expected: Vec<_> = one[..100].iter().map(|token| token % 256).collect();
    for (sample, expected) in all(&bytes).iter().zip(windows(&expected, 10, 1)) {
        assert!(sample.as_slice().iter().map(|&token| i64::from(token)).eq(expected));
    }
}

#[test]
fn a_window_lies_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, from: u16, count: u16| {
        let bytes: Vec<u8> = (from..from + count).flat_map(u16::to_le_bytes).collect();
        std::fs::write(folder.path().join(name), bytes).unwrap();
    };
    write("a.bin", 0, 10);
    write("b.bin", 100, 3);
    write("c.bin", 200, 0);
    write("d.bin", 300, 4);
    let tokens = Tokens::<u32>::open(folder.path(), DType::U16, 4).unwrap();
    let read: Vec<_> = all(&tokens).iter().map(|sample| sample.as_slice()[0]).collect();
    assert_eq!(read, [0, 3, 6, 300]);
    assert_eq!(tokens.total_tokens(), 17);
    let tokens = tokens.stride(100).unwrap();
    assert_eq!(tokens.len(), 2);
    let beyond = tokens.get(2, &mut SampleContext::new(0)).unwrap_err();
    assert!(beyond.to_string().contains("there is no window 2"), "{beyond}");
}

#[test]
fn a_file_of_another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.npy");
    let header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (20,), }                                                           \n";
    let tokens: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
    let npy = [&b"\x93NUMPY\x01\0"[..], &(header.len() as u16).to_le_bytes(), header, &tokens].concat();
    let refused = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        let tokens = Tokens::<i64>::open(&path, DType::U16, 5).unwrap();
        tokens.get(0, &mut SampleContext::new(0)).unwrap_err().to_string()
    };
    let error = refused(&npy);
    let expected = format!("set `header_bytes` to {}, or", npy.len() - tokens.len());
    assert!(error.contains(&expected), "{error}");
    let gzip = refused(b"\x1f\x8b\x08\0\0\0\0\0\0\0and more");
    assert!(gzip.contains("is compressed with gzip; decompress it"), "{gzip}");
}

#[test]
fn a_header_is_skipped() {
    // As llm.c writes them: 256 numbers of type int32, then the tokens.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fineweb_train_000001.bin");
    let mut header = [0i32; 256];
    header[..3].copy_from_slice(&[20_240_520, 1, 20]);
    let header: Vec<u8> = header.iter().flat_map(|number| number.to_le_bytes()).collect();
    let tokens: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
    std::fs::write(&path, [header, tokens].concat()).unwrap();
    let tokens = Tokens::<i64>::open(&path, DType::U16, 5).unwrap();
    let odd = tokens.clone().header_bytes(3).unwrap_err();
    assert!(matches!(odd.problem, DataProblem::InvalidOption { option: "header_bytes", .. }), "{odd}");
    let unread = tokens.clone().setup(&mut SampleContext::new(0)).unwrap_err();
    let unread = unread.downcast::<DataError>().unwrap();
    assert!(matches!(unread.problem, DataProblem::InvalidOption { option: "header_bytes", .. }), "{unread}");
    let unread = tokens.get(0, &mut SampleContext::new(0)).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(unread.problem, DataProblem::InvalidOption { option: "header_bytes", .. }), "{unread}");
    let options = |header: &str| {
        let path = path.to_str().unwrap();
        let json = format!(r#"{{"path": "{path}", "dtype": "uint16", "window": 5{header}}}"#);
        serde_json::from_str::<loader_data::TokensOptions>(&json).unwrap()
    };
    let unread = options("").open().unwrap_err();
    assert!(matches!(unread.problem, DataProblem::InvalidOption { option: "header_bytes", .. }), "{unread}");
    assert_eq!(options(r#", "header_bytes": 1024"#).open().unwrap().len(), 4);
    let with_header = tokens.clone().header_bytes(0).unwrap();
    assert_eq!(with_header.get(0, &mut SampleContext::new(0)).unwrap().as_slice()[..3], [55_432, 308, 1]);
    let tokens = tokens.header_bytes(1024).unwrap();
    assert_eq!(tokens.total_tokens(), 20);
    assert!(all(&tokens).iter().map(|row| row.as_slice()).eq(windows(&(0..20).collect::<Vec<_>>(), 5, 4)));
    assert!(tokens.fingerprint().ends_with(", header 1024)"));
    assert!(tokens.header_bytes(1060).is_err(), "too short for a window");
}

#[test]
fn a_header_is_recognised_by_its_magic_number_and_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.bin");
    for (start, is_header) in [
        ([20_240_520, 1], true),
        ([20_240_520, 7], true),
        ([20_240_801, 7], true),
        ([20_240_801, 2], false),
        ([1, 7], false),
    ] {
        let numbers = start.into_iter().chain([0; 300]).flat_map(i32::to_le_bytes);
        std::fs::write(&path, numbers.collect::<Vec<_>>()).unwrap();
        let mut tokens = Tokens::<i64>::open(&path, DType::U32, 5).unwrap();
        assert_eq!(tokens.setup(&mut SampleContext::new(0)).is_err(), is_header, "{start:?}");
        assert!(tokens.header_bytes(1024).unwrap().setup(&mut SampleContext::new(0)).is_ok(), "{start:?}");
    }
}

#[test]
fn workers_deaths_and_resumes_change_nothing() {
    let batches = same_everywhere(|workers| {
        let tokens = Tokens::<i64>::open(fixture("u16.bin"), DType::U16, 33).unwrap().stride(8).unwrap();
        DataLoader::builder(tokens).batch_size(4).shuffle(true).seed(3).num_workers(workers).build().unwrap()
    });
    assert_eq!(batches[0].shape(), [4, 33]);
}

#[test]
fn a_path_that_is_no_regular_file_is_a_typed_error() {
    refuses_what_is_no_file("bin", |path| Tokens::<i64>::open(path, DType::U16, 2).unwrap_err());
    refuses_what_is_no_file("idx", |path| Tokens::<i64>::open_megatron(path, 2).unwrap_err());
}

#[test]
fn wrong_options_and_files_are_typed_errors() {
    let open = |name: &str, dtype, window| Tokens::<i64>::open(fixture(name), dtype, window);
    let problem = |result: Result<Tokens, DataError>| result.unwrap_err().problem;
    assert!(matches!(problem(open("missing.bin", DType::U16, 8)), DataProblem::NotFound));
    assert!(matches!(problem(open("u16.bin", DType::F32, 8)), DataProblem::Unsupported(_)));
    assert!(matches!(
        problem(open("u16.bin", DType::U16, 0)),
        DataProblem::InvalidOption { option: "window", .. }
    ));
    let short = open("u16.bin", DType::U16, 1001).unwrap_err();
    assert!(
        short.to_string().ends_with("a window has 1001 tokens, but the longest file has 1000"),
        "{short}"
    );
    let stride = open("u16.bin", DType::U16, 1000).unwrap().stride(0);
    assert!(matches!(problem(stride), DataProblem::InvalidOption { option: "stride", .. }));

    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(
        Tokens::<i64>::open(folder.path(), DType::U16, 8).unwrap_err().problem,
        DataProblem::NoFiles { .. }
    ));
    let odd = folder.path().join("odd.bin");
    std::fs::write(&odd, [0; 7]).unwrap();
    let odd = Tokens::<i64>::open(&odd, DType::U16, 2).unwrap_err();
    assert!(odd.to_string().ends_with("7 bytes are not a multiple of 2"), "{odd}");
    let empty = folder.path().join("empty.bin");
    std::fs::write(&empty, []).unwrap();
    assert!(matches!(
        Tokens::<i64>::open(&empty, DType::U16, 2).unwrap_err().problem,
        DataProblem::InvalidOption { option: "window", .. }
    ));
}

#[test]
fn a_token_outside_the_vocabulary_names_its_offset() {
    let cx = &mut SampleContext::new(0);
    // Read with the wrong dtype, two tokens are taken for one.
    let wrong = Tokens::<i64>::open(fixture("u16.bin"), DType::U32, 8).unwrap().vocabulary(50_257);
    let error = wrong.get(3, cx).unwrap_err().downcast::<DataError>().unwrap();
    assert_eq!(error.position, Position::Offset(3 * 7 * 4));
    assert!(matches!(error.problem, DataProblem::TokenOutOfRange { min: 0, max: 50_256, .. }), "{error}");
    assert!(error.file.contains("u16.bin"), "{error}");

    let too_small = Tokens::<u16>::open(fixture("u16.bin"), DType::U32, 8).unwrap();
    let error = too_small.get(0, cx).unwrap_err().downcast::<DataError>().unwrap();
    assert!(matches!(error.problem, DataProblem::TokenOutOfRange { max: 65_535, .. }), "{error}");
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    std::fs::write(&path, [0; 64]).unwrap();
    let tokens = Tokens::<i64>::open(&path, DType::U16, 8).unwrap();
    let cx = &mut SampleContext::new(0);
    tokens.get(0, cx).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(20).unwrap();
    for error in [tokens.get(1, cx).unwrap_err(), tokens.get_many(&[0, 1], cx).unwrap_err()] {
        let error = error.downcast::<DataError>().unwrap();
        assert!(matches!(error.problem, DataProblem::Changed { .. }), "{error}");
    }
}

#[test]
fn a_batch_with_a_bad_window_has_the_others() {
    let _watched = watched();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let mut written: Vec<u16> = (0..64).collect();
    written[21] = 60_000;
    std::fs::write(&path, written.iter().copied().flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let good = written.chunks(4).filter(|window| !window.contains(&60_000));
    let expected: Vec<i64> = good.flatten().map(|&token| i64::from(token)).collect();
    for workers in [0, 1] {
        let tokens = Tokens::<i64>::open(&path, DType::U16, 4).unwrap().stride(4).unwrap().vocabulary(1000);
        let loader = DataLoader::builder(tokens).batch_size(8).on_bad_sample(OnBadSample::Skip);
        let loader = loader.num_workers(workers).build().unwrap();
        let read: Vec<_> =
            loader.iter().unwrap().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect();
        assert_eq!(read, expected, "{workers} workers");
    }
}
