//! Transforms of real photographs, and transforms that are refused.

use std::fs;

use loader_core::{Dataset, SampleContext};
use loader_data::{ImageFolder, Step, Transform, TransformError};

use crate::support::{PHOTOS, fixture, folder, load, planes};

const COFFEE: usize = 5; // 600 x 400 pixels

fn photos(transform: Transform) -> ImageFolder {
    ImageFolder::open(PHOTOS).unwrap().transform(transform).unwrap()
}

fn photos_u8(transform: Transform) -> ImageFolder<u8> {
    ImageFolder::open_u8(PHOTOS).unwrap().transform(transform).unwrap()
}

#[test]
fn transforms_decide_the_shape() {
    for (transform, height, width) in [
        (Transform::new(), 400, 600),
        (Transform::new().resize(100), 100, 150),
        (Transform::new().resize(101), 101, 151),
        (Transform::new().resize_exact(70, 90), 70, 90),
        (Transform::new().center_crop(70, 90), 70, 90),
        (Transform::new().center_crop(500, 90), 500, 90),
        (Transform::new().random_resized_crop(64), 64, 64),
        (Transform::new().resize(100).random_resized_crop(64), 64, 64),
        (Transform::new().random_horizontal_flip(1.0), 400, 600),
        (Transform::standard_train(224), 224, 224),
        (Transform::standard_eval(224), 224, 224),
        (Transform::standard_eval(97), 97, 97),
    ] {
        let (image, label) = load(&photos(transform.clone()), COFFEE).unwrap();
        assert_eq!((image.shape(), label), ([3, height, width].as_slice(), 3), "{transform:?}");
    }
}

#[test]
fn a_flip_is_the_exact_mirror_image() {
    for flipped in [Transform::new(), Transform::new().resize(64), Transform::new().center_crop(50, 81)] {
        let (image, _) = load(&photos_u8(flipped.clone()), COFFEE).unwrap();
        let (mirrored, _) = load(&photos_u8(flipped.random_horizontal_flip(1.0)), COFFEE).unwrap();
        assert_eq!(image.shape(), mirrored.shape());
        let width = image.shape()[2];
        for (row, mirrored) in image.as_slice().chunks(width).zip(mirrored.as_slice().chunks(width)) {
            assert!(row.iter().eq(mirrored.iter().rev()));
        }
    }
    let transform = Transform::new().resize(64);
    let never = transform.clone().random_horizontal_flip(0.0);
    assert_eq!(load(&photos(never), COFFEE).unwrap(), load(&photos(transform), COFFEE).unwrap());
}

#[test]
fn half_of_all_images_are_flipped() {
    let (plain, _) = load(&photos_u8(Transform::new().resize(2)), COFFEE).unwrap();
    let flipping = photos_u8(Transform::new().resize(2).random_horizontal_flip(0.5));
    let mut cx = SampleContext::new(3);
    let mut flipped = 0;
    for sample in 0..40 {
        cx.set_index(sample);
        flipped += usize::from(flipping.get(COFFEE, &mut cx).unwrap().0 != plain);
    }
    assert!((10..=30).contains(&flipped), "{flipped} of 40");
}

#[test]
fn f32_is_u8_scaled_and_normalised() {
    let random = Transform::new().random_resized_crop(50).random_horizontal_flip(0.5);
    let (bytes, _) = load(&photos_u8(random.clone()), COFFEE).unwrap();
    let (floats, _) = load(&photos(random.clone()), COFFEE).unwrap();
    assert!(
        bytes
            .as_slice()
            .iter()
            .zip(floats.as_slice())
            .all(|(&byte, &float)| f32::from(byte) / 255.0 == float)
    );

    let (mean, std) = (Transform::IMAGENET_MEAN, Transform::IMAGENET_STD);
    let (normalised, _) = load(&photos(random.normalise(mean, std)), COFFEE).unwrap();
    for (channel, (floats, normalised)) in planes(&floats).into_iter().zip(planes(&normalised)).enumerate() {
        let expected = floats.iter().map(|float| (float - mean[channel]) / std[channel]);
        assert!(expected.eq(normalised.iter().copied()));
    }
}

#[test]
fn the_same_generator_gives_the_same_pixels() {
    let train = photos_u8(
        Transform::standard_train(64).steps()[..2].iter().fold(Transform::new(), |all, &step| all.step(step)),
    );
    let image = |seed, index| {
        let mut cx = SampleContext::new(seed);
        cx.set_index(index);
        train.get(COFFEE, &mut cx).unwrap().0
    };
    assert_eq!(image(1, 5), image(1, 5));
    assert_ne!(image(1, 5), image(1, 6));
    assert_ne!(image(1, 5), image(2, 5));

    // The result does not depend on what the thread has loaded before.
    load(&train, 0).unwrap();
    let here = image(1, 5);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| image(1, 5)).join().unwrap());
    assert_eq!(here, elsewhere);
}

#[test]
fn a_grey_image_stays_grey() {
    let (image, _) = load(&photos_u8(Transform::new().random_resized_crop(64)), 6).unwrap();
    let [red, green, blue] = planes(&image);
    assert!(red == green && green == blue);
}

#[test]
fn resizing_keeps_the_mean_of_a_photograph() {
    let mean = |transform| {
        let (image, _) = load(&photos(transform), COFFEE).unwrap();
        planes(&image).map(|plane| plane.iter().sum::<f32>() / plane.len() as f32)
    };
    let whole = mean(Transform::new());
    let small = mean(Transform::new().resize_exact(40, 60));
    assert!(
        whole.iter().zip(small).all(|(whole, small)| (whole - small).abs() < 0.005),
        "{whole:?}, {small:?}"
    );
}

#[test]
fn a_transform_survives_serialisation() {
    let transform = Transform::standard_train(224);
    let json = serde_json::to_string(&transform).unwrap();
    assert!(
        json.starts_with(r#"[{"random_resized_crop":{"height":224,"width":224,"scale":[0.08,1.0],"#),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<Transform>(&json).unwrap(), transform);
}

#[test]
fn bad_values_are_refused() {
    let part =
        |scale, ratio| Transform::new().step(Step::RandomResizedCrop { height: 8, width: 8, scale, ratio });
    let good = (0.5, 1.0);
    let cases = [
        (Transform::new().resize(0), "resize: a size of 0 pixels is out of range; give one from 1 to 16384"),
        (Transform::new().resize_exact(8, 16_385), "resize_exact: a size of 16385 pixels"),
        (Transform::new().center_crop(0, 8), "center_crop: a size of 0 pixels"),
        (Transform::standard_train(0), "random_resized_crop: a size of 0 pixels"),
        (Transform::standard_eval(u32::MAX), "resize: a size of 4294967295 pixels"),
        (
            part((1.0, 0.08), good),
            "random_resized_crop: 1 to 0.08 is not a valid range of fractions of the image's area; give the",
        ),
        (part((0.0, 1.0), good), "0 to 1 is not a valid range of fractions"),
        (part((0.5, 1.1), good), "0.5 to 1.1 is not a valid range of fractions"),
        (part((f64::NAN, 1.0), good), "NaN to 1 is not a valid range of fractions"),
        (
            part(good, (1.3, 0.7)),
            "1.3 to 0.7 is not a valid range of aspect ratios (width / height); give the smaller one first",
        ),
        (part(good, (0.7, f64::INFINITY)), "0.7 to inf is not a valid range of aspect ratios"),
        (
            Transform::new().random_horizontal_flip(1.5),
            "random_horizontal_flip: 1.5 is not a probability; give",
        ),
        (Transform::new().random_horizontal_flip(f64::NAN), "NaN is not a probability"),
        (
            Transform::new().normalise([0.0; 3], [1.0, 0.0, 1.0]),
            "mean 0 and standard deviation 0 of channel 1",
        ),
        (
            Transform::new().normalise([f32::NAN; 3], [1.0; 3]),
            "mean NaN and standard deviation 1 of channel 0",
        ),
        (
            Transform::standard_eval(8).resize(8),
            "normalise must be the last step and can occur only once; move",
        ),
    ];
    let folder = ImageFolder::open(PHOTOS).unwrap();
    for (transform, expected) in cases {
        let error = transform.validate().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
        // The errors are compared as text, because NaN is not equal to itself.
        let from_folder = folder.clone().transform(transform).unwrap_err();
        assert_eq!(from_folder.to_string(), error.to_string());
    }
}

#[test]
fn bytes_cannot_be_normalised() {
    let error = ImageFolder::open_u8(PHOTOS).unwrap().transform(Transform::standard_eval(8)).unwrap_err();
    assert_eq!(error, TransformError::NormaliseBytes);
    assert!(error.to_string().contains("leave the step out, or choose f32"));
}

#[test]
fn setup_checks_a_deserialised_dataset() {
    let json = serde_json::to_string(&ImageFolder::open_u8(PHOTOS).unwrap()).unwrap();
    let json = json.replace(r#""transform":[]"#, r#""transform":[{"resize":{"size":0}}]"#);
    let mut photos: ImageFolder<u8> = serde_json::from_str(&json).unwrap();
    assert!(
        photos.setup(&mut SampleContext::new(0)).unwrap_err().to_string().contains("resize: a size of 0")
    );
}

#[test]
fn a_resized_crop_is_close_to_that_of_pillow() {
    let made = folder(&[("class/coffee.png", &fs::read(fixture("coffee-by-pillow.png")).unwrap())]);
    let (expected, _) = load(&ImageFolder::open_u8(made.path()).unwrap(), 0).unwrap();
    let transform = Transform::new().center_crop(240, 320).resize_exact(48, 64);
    let (found, _) = load(&photos_u8(transform), COFFEE).unwrap();
    assert_eq!(found.shape(), expected.shape());
    let differences = || {
        found.as_slice().iter().zip(expected.as_slice()).map(|(found, expected)| found.abs_diff(*expected))
    };
    let mean = differences().map(f64::from).sum::<f64>() / found.as_slice().len() as f64;
    let largest = differences().max();
    assert!(mean < 0.5 && largest <= Some(3), "mean {mean}, largest {largest:?}");
}
