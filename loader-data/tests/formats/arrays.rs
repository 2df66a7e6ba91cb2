//! Arrays: files of NumPy, safetensors, IDX and CIFAR.

use std::{fs, path::PathBuf};

use loader_core::{DType, DataLoader, Dataset, SampleContext, Tensor};
use loader_data::{
    ArrayFormat, Arrays, ArraysOptions, DataError, DataProblem, FieldOptions, Position, Record,
};
use proptest::prelude::*;

use crate::everywhere::{refuses_what_is_no_file, same_everywhere, write_old};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/fixtures/arrays")).join(name)
}

fn row(dataset: &Arrays, index: usize) -> Record {
    dataset.get(index, &mut SampleContext::new(0)).unwrap()
}

/// Opens the fields `names` of a file.
fn select(name: &str, names: &[&str]) -> Result<Arrays, DataError> {
    ArraysOptions::new(fixture(name)).fields(FieldOptions::new().select(names.iter().copied())).open()
}

/// Row `index` of the field `image`, which the script has written.
fn image(index: usize, pixels: usize) -> Vec<u8> {
    (0..pixels).map(|pixel| ((7 * index + pixel) % 256) as u8).collect()
}

fn weights(index: usize) -> [f32; 3] {
    [0.0, 0.25, 0.5].map(|part| index as f32 + part)
}

fn tensor<T: loader_core::Element>(record: &Record, field: &str) -> Tensor<T> {
    match record.get(field) {
        Some(loader_data::Value::Tensor(tensor)) => tensor.clone().downcast().unwrap(),
        other => panic!("{field}: {other:?}"),
    }
}

#[test]
fn archives_read_back_equal() {
    for name in ["digits.npz", "compressed.npz", "digits.safetensors"] {
        let rows = select(name, &["label", "image", "weights"]).unwrap();
        assert_eq!(rows.len(), 10, "{name}");
        for index in 0..10 {
            let record = row(&rows, index);
            assert_eq!(record.get("label"), Some(&(index as i64).into()), "{name}");
            let pixels = tensor::<u8>(&record, "image");
            assert_eq!((pixels.shape(), pixels.as_slice()), (&[8, 8][..], &image(index, 64)[..]), "{name}");
            assert_eq!(tensor::<f32>(&record, "weights").as_slice(), weights(index), "{name}");
        }
    }
    let all = Arrays::open(fixture("digits.safetensors")).unwrap();
    let half = tensor::<half::f16>(&row(&all, 3), "half");
    assert_eq!(half.as_slice().iter().map(|half| half.to_f32()).collect::<Vec<_>>(), weights(3));
}

#[test]
fn single_arrays_read_back_equal() {
    let one = |name: &str| Arrays::open_fields([("x", fixture(name))]).unwrap();
    for name in ["weights-{0..1}.npy", "big-endian.npy", "weights-idx2-float"] {
        let rows = one(name);
        assert_eq!(rows.len(), 10);
        for index in 0..10 {
            assert_eq!(tensor::<f32>(&row(&rows, index), "x").as_slice(), weights(index), "{name}");
        }
    }
    for name in ["images-idx3-ubyte", "images-idx3-ubyte.gz"] {
        assert_eq!(tensor::<u8>(&row(&one(name), 9), "x").as_slice(), image(9, 64));
    }
    assert_eq!(row(&one("truth.npy"), 3).get("x"), Some(&true.into()));
    let named_after_the_file = Arrays::open(fixture("images-idx3-ubyte.gz")).unwrap();
    assert_eq!(
        named_after_the_file.fields(),
        [("images-idx3-ubyte".to_owned(), "uint8 array of shape [8, 8]".to_owned())]
    );
}

#[test]
fn cifar_reads_back_equal() {
    let ten = Arrays::open_as(fixture("cifar-10.bin"), ArrayFormat::Cifar10).unwrap();
    let hundred = Arrays::open_as(fixture("cifar-100.bin"), ArrayFormat::Cifar100).unwrap();
    assert_eq!((ten.len(), hundred.len()), (3, 3));
    for index in 0..3 {
        let (ten, hundred) = (row(&ten, index), row(&hundred, index));
        assert_eq!(ten.get("label"), Some(&(index as u8).into()));
        assert_eq!(hundred.get("coarse_label"), Some(&(index as u8).into()));
        assert_eq!(hundred.get("fine_label"), Some(&(index as u8 + 50).into()));
        for record in [ten, hundred] {
            let pixels = tensor::<u8>(&record, "image");
            assert_eq!((pixels.shape(), pixels.as_slice()), (&[3, 32, 32][..], &image(index, 3072)[..]));
        }
    }
    let other = Arrays::open_as(fixture("cifar-10.bin"), ArrayFormat::Cifar100).unwrap_err();
    assert!(matches!(other.problem, DataProblem::Malformed { format: "CIFAR", .. }), "{other}");
}

#[test]
fn the_same_everywhere() {
    for name in ["digits.npz", "compressed.npz"] {
        let batches = same_everywhere(|workers| {
            // The same file 60 times, so that the epoch is long enough to kill workers in it.
            let options = (0..60).fold(ArraysOptions::default(), |options, _| options.path(fixture(name)));
            let fields = FieldOptions::new().dtype("label", DType::I32);
            let rows = options.fields(fields).open().unwrap();
            DataLoader::builder(rows)
                .batch_size(5)
                .shuffle(true)
                .seed(3)
                .num_workers(workers)
                .build()
                .unwrap()
        });
        let images = batches[0].tensor::<u8>("image").unwrap();
        let labels = batches[0].tensor::<i32>("label").unwrap();
        assert_eq!((batches.len(), images.shape()), (120, &[5, 8, 8][..]));
        for (number, &label) in labels.as_slice().iter().enumerate() {
            assert_eq!(images.row(number), image(label as usize, 64));
        }
    }
}

#[test]
fn typed_rows_and_mixed_files() {
    #[derive(serde::Deserialize)]
    struct Row {
        image: Vec<Vec<u8>>,
        label: u8,
    }
    let rows = Arrays::open_fields([
        ("image", fixture("images-idx3-ubyte.gz")),
        ("label", fixture("labels-idx1-ubyte.gz")),
    ]);
    let Row { image: pixels, label } =
        rows.unwrap().rows::<Row>().get(4, &mut SampleContext::new(0)).unwrap();
    assert_eq!((pixels.concat(), label), (image(4, 64), 4));
    // Fields of an archive and of a file of its own.
    let both = ArraysOptions::new(fixture("digits.npz")).field("truth", fixture("truth.npy")).open().unwrap();
    assert_eq!((row(&both, 5).len(), row(&both, 5).get("truth")), (4, Some(&true.into())));
}

#[test]
fn a_path_that_is_no_regular_file_is_a_typed_error() {
    refuses_what_is_no_file("npy", |path| Arrays::open(path).unwrap_err());
    refuses_what_is_no_file("npz", |path| Arrays::open_fields([("x", path)]).unwrap_err());
}

#[test]
fn each_file_must_have_as_many_rows_of_each_field() {
    let folder = tempfile::tempdir().unwrap();
    // One byte per row, as in `{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, ...}`.
    let write = |name: &str, x: usize, y: usize| {
        let field = |start, rows| {
            format!("{{\"dtype\":\"U8\",\"shape\":[{rows}],\"data_offsets\":[{start},{}]}}", start + rows)
        };
        let header = format!("{{\"x\":{},\"y\":{}}}", field(0, x), field(x, y));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; x + y]].concat();
        write_old(&folder.path().join(name), &file);
    };
    write("0.safetensors", 3, 3);
    write("1.safetensors", 2, 2);
    assert_eq!(Arrays::open(folder.path().join("*")).unwrap().len(), 5);
    write("0.safetensors", 3, 2);
    write("1.safetensors", 2, 3);
    let error = Arrays::open(folder.path().join("*")).unwrap_err();
    assert!(error.file.ends_with("0.safetensors`"), "{error}");
    assert!(matches!(error.problem, DataProblem::UnequalRows { .. }), "{error}");
}

#[test]
fn what_cannot_be_a_field_is_named() {
    let refused = |name: &str, fields: &[&str]| select(name, fields).unwrap_err().problem;
    assert!(
        refused("odd.npz", &["names"]).to_string().contains("field `names`: elements of NumPy's type `<U")
    );
    assert!(refused("odd.npz", &["columns"]).to_string().contains("Fortran order"));
    assert!(matches!(refused("odd.npz", &["total"]), DataProblem::WrongType { .. }));
    assert!(matches!(refused("odd.npz", &["none"]), DataProblem::MissingField { .. }));
    assert!(matches!(
        refused("odd.npz", &["label", "short"]),
        DataProblem::UnequalRows { rows: 3 | 10, other_rows: 3 | 10, .. }
    ));
    assert_eq!(select("odd.npz", &["label"]).unwrap().len(), 10, "other fields do not matter");
    assert!(refused("objects.npy", &["objects"]).to_string().contains("`|O`"));
    assert!(refused("fortran.npy", &["fortran"]).to_string().contains("ascontiguousarray"));
    let twice = ArraysOptions::new(fixture("digits.npz")).field("label", fixture("truth.npy")).open();
    assert!(matches!(twice.unwrap_err().problem, DataProblem::DuplicateField { .. }));
    let other_fields = ArraysOptions::new(fixture("digits.npz")).path(fixture("odd.npz")).open();
    assert!(matches!(
        other_fields.unwrap_err().problem,
        DataProblem::MissingField { .. } | DataProblem::Unsupported(_)
    ));
    let other_type = ArraysOptions::default()
        .field("x", fixture("big-endian.npy"))
        .field("x", fixture("images-idx3-ubyte"))
        .open();
    assert!(matches!(other_type.unwrap_err().problem, DataProblem::WrongType { .. }));
    assert!(matches!(
        ArraysOptions::default().open().unwrap_err().problem,
        DataProblem::InvalidOption { option: "path", .. }
    ));
    let archive = Arrays::open_fields([("x", fixture("digits.npz"))]).unwrap_err();
    assert!(archive.to_string().contains("has 3 arrays"), "{archive}");
}

/// Opens each file, cut off after each of its bytes.
#[test]
fn every_truncation_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        ["digits.npz", "compressed.npz", "digits.safetensors", "weights-0.npy", "labels-idx1-ubyte.gz"]
    {
        let bytes = fs::read(fixture(name)).unwrap();
        let path = folder.path().join(name);
        for len in 0..bytes.len() {
            fs::write(&path, &bytes[..len]).unwrap();
            let Err(error) = Arrays::open(&path) else { panic!("{name} of {len} bytes") };
            assert!(error.file.contains(name), "{error}");
        }
        fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
        if !name.ends_with(".npz") {
            Arrays::open(&path).expect_err(name);
        }
    }
}

#[test]
fn a_damaged_compressed_array_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.npz");
    let mut bytes = fs::read(fixture("compressed.npz")).unwrap();
    // In the compressed elements of the first array.
    bytes[150] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = Arrays::open(&path).unwrap_err();
    assert!(matches!(&error.position, Position::Member(member) if member == "image.npy"), "{error}");
    let gzip = folder.path().join("damaged.gz");
    let mut bytes = fs::read(fixture("images-idx3-ubyte.gz")).unwrap();
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    fs::write(&gzip, &bytes).unwrap();
    Arrays::open(&gzip).expect_err("its checksum is wrong");
}

#[test]
fn a_header_that_claims_too_much_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge");
    // IDX with 2^96 elements, as it is and packed.
    let header = [&[0, 0, 8, 3][..], &[0xff; 12]].concat();
    fs::write(&path, &header).unwrap();
    assert!(matches!(Arrays::open(&path).unwrap_err().problem, DataProblem::Truncated));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &[0, 0, 8, 1, 0xff, 0xff, 0xff, 0xff]).unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
    assert!(matches!(Arrays::open(&path).unwrap_err().problem, DataProblem::Truncated));
}

#[test]
fn compressed_arrays_have_a_limit_in_memory() {
    let open = |name: &str, max| ArraysOptions::new(fixture(name)).max_unpacked_bytes(max).open();
    let refused = |name: &str, max| open(name, max).unwrap_err().problem;
    for (name, bytes) in [("compressed.npz", 10 * (64 + 8 + 12)), ("images-idx3-ubyte.gz", 640)] {
        open(name, bytes).unwrap();
        let problem = refused(name, bytes - 1);
        assert!(
            matches!(problem, DataProblem::UnpackedTooLarge { len, max } if len == bytes && max == bytes - 1),
            "{name}: {problem}"
        );
    }
    open("digits.npz", 0).unwrap();
    // The limit is that of all files together.
    let twice = ArraysOptions::new(fixture("compressed.npz")).path(fixture("compressed.npz"));
    twice.clone().max_unpacked_bytes(1680).open().unwrap();
    let problem = twice.max_unpacked_bytes(1679).open().unwrap_err().problem;
    assert!(matches!(problem, DataProblem::UnpackedTooLarge { len: 1680, .. }), "{problem}");
    // Arrays that are not selected are not unpacked.
    let labels = ArraysOptions::new(fixture("compressed.npz")).fields(FieldOptions::new().select(["label"]));
    assert_eq!(labels.max_unpacked_bytes(10 * 8).open().unwrap().len(), 10);
    let options: ArraysOptions =
        serde_json::from_str(r#"{"path": "x.npz", "max_unpacked_bytes": "2 GiB"}"#).unwrap();
    assert_eq!(options, ArraysOptions::new("x.npz").max_unpacked_bytes(2 << 30));

    // 16 GiB of numbers, as the header says. The file is large enough for them.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gz");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &[0, 0, 0x0c, 1, 0xff, 0xff, 0xff, 0xff]).unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
    let problem = Arrays::open(&path).unwrap_err().problem;
    assert!(matches!(problem, DataProblem::UnpackedTooLarge { max, .. } if max == 4 << 30), "{problem}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_never_panics(name in prop::sample::select(vec!["digits.npz", "compressed.npz", "digits.safetensors",
        "weights-0.npy", "images-idx3-ubyte"]), at in 0usize..1200, byte: u8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let mut bytes = fs::read(fixture(name)).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        fs::write(&path, bytes).unwrap();
        if let Ok(rows) = Arrays::open(&path) {
            for index in 0..rows.len().min(20) {
                rows.get(index, &mut SampleContext::new(0)).ok();
            }
        }
    }
}
