//! `loader inspect` with image folders.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Finished, PHOTOS, copy_of_photos, run};

pub(crate) fn inspect(arguments: &[&str]) -> Finished {
    run(&[&["inspect", "--json"], arguments].concat())
}

pub(crate) fn inspection(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error} in {finished:#?}"))
}

/// Returns what the command prints about a target, without the time that the reading took and the config for the target.
pub(crate) fn untimed_inspection(arguments: &[&str]) -> Value {
    let mut inspection = inspection(inspect(arguments).assert_status(0));
    let keys = inspection.as_object_mut().unwrap();
    keys.remove("seconds");
    keys.remove("config");
    inspection
}

#[test]
fn an_image_folder_is_described_with_any_number_of_workers() {
    let found = untimed_inspection(&[PHOTOS]);
    assert_eq!(
        (&found["kind"], &found["files"], &found["samples"]),
        (&json!("image-folder"), &json!(9), &json!(9))
    );
    assert_eq!((&found["is_complete"], &found["bad_samples"]), (&json!(true), &json!([])));
    assert_eq!(found["classes"].as_array().unwrap().len(), 5);
    let image = &found["fields"][0];
    assert_eq!(
        (&image["types"][0]["type"], &image["types"][0]["shape"][0]),
        (&json!("uint8"), &json!([3, 3]))
    );
    assert_eq!(image["lengths"]["buckets"][0]["samples"].as_u64().map(|count| count > 0), Some(true));
    let labels = &found["fields"][1]["values"];
    let total: u64 = labels.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!((labels.as_object().unwrap().len(), total), (5, 9));
    assert_eq!(untimed_inspection(&[PHOTOS, "--num-workers", "2", "--batch-size", "2"]), found);

    let text = run(&["inspect", PHOTOS]);
    assert!(text.assert_status(0).stdout.contains("image: uint8 [3, "), "{text:#?}");
}

#[test]
fn a_damaged_image_is_listed_and_fails_a_strict_inspection() {
    let (_folder, photos) = copy_of_photos();
    fs::write(photos.join("space/broken.jpg"), "not an image").unwrap();
    std::os::unix::fs::symlink("nowhere", photos.join("space/link.jpg")).unwrap();
    let photos = photos.to_str().unwrap();
    let found = inspection(inspect(&[photos, "--num-workers", "2"]).assert_status(0));
    assert_eq!((&found["files"], &found["samples"]), (&json!(11), &json!(9)));
    let error = |bad: usize| found["bad_samples"][bad]["error"].as_str().unwrap();
    assert!(error(0).contains("broken.jpg") && error(0).contains("looks like text"), "{}", error(0));
    assert!(error(1).contains("link.jpg` cannot be read: No such file"), "{}", error(1));
    assert_eq!(
        inspection(inspect(&[photos, "--strict"]).assert_status(1))["bad_samples"].as_array().unwrap().len(),
        2
    );
    let stopped = inspection(inspect(&[photos, "--max-bad-samples", "0"]).assert_status(1));
    assert_eq!(
        (&stopped["has_too_many_bad_samples"], &stopped["is_complete"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn a_contact_sheet_has_the_images_of_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let sheet = folder.path().join("sheet.png");
    let config = folder.path().join("run.toml");
    let text = format!("[dataset]\nkind = \"image-folder\"\npath = \"{PHOTOS}\"\nsize = 32\n");
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    inspect(&[config, "--batch-size", "5", "--contact-sheet", sheet.to_str().unwrap()]).assert_status(0);
    let png = fs::read(&sheet).unwrap();
    let number = |offset: usize| u32::from_be_bytes(png[offset..offset + 4].try_into().unwrap());
    // 3 columns and 2 rows of 32 pixels, with 2 pixels between them.
    assert_eq!((&png[1..4], number(16), number(20)), (&b"PNG"[..], 3 * 34 - 2, 2 * 34 - 2));

    let nowhere = folder.path().join("no/sheet.png");
    let failed = inspect(&[config, "--contact-sheet", nowhere.to_str().unwrap()]);
    assert!(failed.assert_status(1).stderr.contains("sheet.png` cannot be written"), "{failed:#?}");
    assert!(!failed.stdout.contains("samples"), "it was read: {}", failed.stdout);
}

#[test]
fn a_limit_and_wrong_targets() {
    let found = inspection(inspect(&[PHOTOS, "--limit", "4"]).assert_status(0));
    assert_eq!((&found["samples"], &found["is_complete"]), (&json!(4), &json!(false)));
    let missing = run(&["inspect", "/nowhere"]);
    assert!(missing.assert_status(2).stderr.contains("/nowhere"), "{missing:#?}");
    let empty = tempfile::tempdir().unwrap();
    run(&["inspect", empty.path().to_str().unwrap()]).assert_status(2);
}
