//! Which files are listed, in which order, and the errors of folders that cannot be opened.

use std::{fs, os::unix};

use loader_core::Dataset;
use loader_data::{ImageFolder, ImageFolderError};

use crate::support::{PHOTOS, dot, folder, load};

fn names(images: &ImageFolder) -> Vec<String> {
    let name = |index| {
        let path = images.path(index).unwrap();
        let parent = path.parent().unwrap().file_name().unwrap();
        format!("{}/{}", parent.display(), path.file_name().unwrap().display())
    };
    (0..images.len()).map(name).collect()
}

fn message(error: &ImageFolderError, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn the_sample_photographs_are_listed() {
    let photos = ImageFolder::open(PHOTOS).unwrap();
    assert_eq!(photos.classes(), ["animal", "medical", "space", "table", "texture"]);
    assert!(photos.labels().eq([0, 1, 2, 2, 2, 3, 4, 4, 4]));
    assert_eq!(
        names(&photos)[2..5],
        ["space/astronaut.jpg", "space/hubble_deep_field.jpg", "space/rocket.jpg"]
    );
    assert_eq!((photos.label(9), photos.path(9)), (None, None));
    assert!(load(&photos, 9).is_err());
}

#[test]
fn files_are_listed_in_the_order_of_torchvision() {
    // As `sorted(os.walk(...))` and `sorted(files)`: a folder's files come before its sub-folders'.
    let dot = dot();
    let files =
        ["b/z.png", "b/a/x.png", "b/a b/y.png", "b/a/c/w.png", "B/10.png", "B/9.PNG", "B/é.Jpeg", "a/0.JPG"];
    let made = folder(&files.map(|file| (file, dot.as_slice())));
    let images = ImageFolder::open(made.path()).unwrap();
    assert_eq!(images.classes(), ["B", "a", "b"]);
    let expected =
        ["B/10.png", "B/9.PNG", "B/é.Jpeg", "a/0.JPG", "b/z.png", "a/x.png", "a b/y.png", "c/w.png"];
    assert_eq!(names(&images), expected);
    assert!(images.labels().eq([0, 0, 0, 1, 2, 2, 2, 2]));
}

#[test]
fn another_listing_has_another_fingerprint() {
    let dot = dot();
    let fingerprint = |files: &[&str]| {
        let files: Vec<_> = files.iter().map(|file| (*file, dot.as_slice())).collect();
        ImageFolder::open(folder(&files).path()).unwrap().fingerprint()
    };
    let files = ["a/1.png", "a/2.png", "b/3.png"];
    let same = fingerprint(&files);
    assert_eq!(fingerprint(&files), same, "the path of the folder does not count");
    for other in [
        ["a/1.png", "a/4.png", "b/3.png"],
        ["a/0.png", "a/2.png", "b/3.png"],
        ["a/1.png", "b/2.png", "b/3.png"],
        ["c/1.png", "c/2.png", "d/3.png"],
    ] {
        assert_ne!(fingerprint(&other), same, "{other:?}");
    }
}

#[test]
fn hidden_and_other_files_are_skipped() {
    let dot = dot();
    let files = ["a/1.png", "a/.2.png", "a/.cache/3.png", ".b/4.png", "a/notes.txt", "a/jpg", "5.png"];
    let made = folder(&files.map(|file| (file, dot.as_slice())));
    let images = ImageFolder::open(made.path()).unwrap();
    assert_eq!((images.classes(), names(&images)), (["a".to_owned()].as_slice(), vec!["a/1.png".to_owned()]));
}

#[test]
fn links_are_followed_but_not_in_circles() {
    let dot = dot();
    let elsewhere = folder(&[("deep/1.png", &dot)]);
    let made = folder(&[("a/0.png", &dot)]);
    unix::fs::symlink(elsewhere.path(), made.path().join("b")).unwrap();
    unix::fs::symlink("nowhere", made.path().join("a/gone.png")).unwrap();
    let images = ImageFolder::open(made.path()).unwrap();
    assert_eq!(names(&images), ["a/0.png", "a/gone.png", "deep/1.png"]);
    let error = load(&images, 1).unwrap_err().to_string();
    assert!(error.contains("a/gone.png` cannot be read: No such file"), "{error}");

    // Links to a folder that contains the link are skipped; its images have been listed already.
    unix::fs::symlink("..", made.path().join("a/up")).unwrap();
    unix::fs::symlink(".", made.path().join("a/itself")).unwrap();
    unix::fs::symlink(".", made.path().join("b-root")).unwrap();
    unix::fs::symlink("c", made.path().join("c")).unwrap();
    let images = ImageFolder::open(made.path()).unwrap();
    assert_eq!(names(&images), ["a/0.png", "a/gone.png", "deep/1.png"]);
    assert_eq!(images.classes(), ["a", "b"]);

    let only_itself = folder(&[]);
    unix::fs::symlink(".", only_itself.path().join("a")).unwrap();
    let error = ImageFolder::open(only_itself.path()).unwrap_err();
    assert!(matches!(error, ImageFolderError::NoClasses { .. }));
}

#[test]
fn a_missing_folder_fails() {
    let error = ImageFolder::open("no/such/folder").unwrap_err();
    assert!(matches!(error, ImageFolderError::NotFound { .. }));
    message(&error, &["`no/such/folder` does not exist", "one sub-folder of images per class"]);
}

#[test]
fn a_file_instead_of_a_folder_fails() {
    let file = format!("{PHOTOS}/README.md");
    let error = ImageFolder::open(&file).unwrap_err();
    assert!(matches!(error, ImageFolderError::NotAFolder { .. }));
    message(&error, &[&file, "is a file", "one sub-folder of images per class"]);
}

#[test]
fn a_folder_that_cannot_be_listed_fails() {
    let inside_a_file = format!("{PHOTOS}/README.md/photos");
    let error = ImageFolder::open(&inside_a_file).unwrap_err();
    assert!(matches!(error, ImageFolderError::Unreadable { .. }));
    message(&error, &[&inside_a_file, "cannot be listed: Not a directory", "check that"]);
}

#[test]
fn images_outside_of_class_folders_fail() {
    let class = format!("{PHOTOS}/space");
    let error = ImageFolder::open(&class).unwrap_err();
    assert!(
        matches!(&error, ImageFolderError::ImagesWithoutClass { example, .. } if example == "astronaut.jpg")
    );
    message(&error, &[&class, "no class folders", "move them", "some-class/astronaut.jpg"]);
}

#[test]
fn a_folder_without_class_folders_fails() {
    let made = folder(&[("notes.txt", b"")]);
    let error = ImageFolder::open(made.path()).unwrap_err();
    assert!(matches!(error, ImageFolderError::NoClasses { .. }));
    message(&error, &[made.path().to_str().unwrap(), "has no class folders; make one sub-folder per class"]);
}

#[test]
fn classes_without_images_are_named() {
    let made = folder(&[("a/1.png", &dot()), ("b/notes.txt", b""), ("c/d/2.gif", b"")]);
    let error = ImageFolder::open(made.path()).unwrap_err();
    assert!(matches!(&error, ImageFolderError::EmptyClasses { classes, .. } if classes == &["b", "c"]));
    message(&error, &[made.path().to_str().unwrap(), "no images in class folder `b`, `c`; put images"]);

    for class in ["d", "e", "f", "g", "h"] {
        fs::create_dir(made.path().join(class)).unwrap();
    }
    message(&ImageFolder::open(made.path()).unwrap_err(), &["`b`, `c`, `d`, `e`, `f` and 2 more;"]);
}

#[test]
fn classes_of_audio_files_are_recognised() {
    let made = folder(&[("a/2.WAV", b""), ("a/1.wav", b""), ("b/notes.txt", b"")]);
    let error = ImageFolder::open(made.path()).unwrap_err();
    let words =
        "class folder(s) `a`, `b` have audio files (such as `a/1.wav`) and no images; open the folder with";
    message(&error, &[made.path().to_str().unwrap(), words, "`kind = \"audio-folder\"`"]);
    fs::write(made.path().join("b/1.png"), dot()).unwrap();
    let mixed = ImageFolder::open(made.path()).unwrap_err();
    assert!(matches!(&mixed, ImageFolderError::EmptyClasses { classes, .. } if classes == &["a"]), "{mixed}");
}

#[test]
fn names_that_are_not_unicode_are_read() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let name = |bytes| OsStr::from_bytes(bytes);
    let made = folder(&[("a/1.png", &dot())]);
    let root = made.path().join(name(b"r\xFF"));
    fs::rename(made.path().join("a"), made.path().join("b")).unwrap();
    fs::create_dir(&root).unwrap();
    fs::rename(made.path().join("b"), root.join(name(b"b\xFE"))).unwrap();
    fs::write(root.join(name(b"b\xFE")).join(name(b"\xFF.png")), dot()).unwrap();
    fs::write(root.join(name(b"b\xFE")).join(name(b"\xFF\xFF.png")), "no image").unwrap();

    let images = ImageFolder::open(&root).unwrap();
    assert_eq!(images.classes(), ["b\u{FFFD}"]);
    let json = serde_json::to_string(&images).unwrap();
    let images: ImageFolder = serde_json::from_str(&json).unwrap();
    assert_eq!(images.path(1), Some(root.join(name(b"b\xFE/\xFF.png"))));
    assert_eq!(load(&images, 0).unwrap(), load(&images, 1).unwrap());
    let error = load(&images, 2).unwrap_err().to_string();
    assert!(error.contains("b\u{FFFD}/\u{FFFD}\u{FFFD}.png` is not an image of a known type"), "{error}");
}

#[test]
fn a_dataset_survives_serialisation() {
    let photos = ImageFolder::open(PHOTOS).unwrap();
    let json = serde_json::to_string(&photos).unwrap();
    let back: ImageFolder = serde_json::from_str(&json).unwrap();
    assert_eq!((back.classes(), names(&back)), (photos.classes(), names(&photos)));
    assert_eq!(load(&back, 0).unwrap(), load(&photos, 0).unwrap());
}
