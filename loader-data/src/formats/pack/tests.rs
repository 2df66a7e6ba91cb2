//! Tests of packing.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    time::{Duration, UNIX_EPOCH},
};

use super::{PackError, PackFormat, PackOptions, PackPlan, PackSummary, check_packed};

/// A folder with the files `names`, of which each is an archive of its own.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        let folder = Self(folder);
        names.iter().for_each(|name| folder.put(name));
        folder
    }

    fn put(&self, name: &str) {
        let path = self.source().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }

    fn source(&self) -> PathBuf {
        self.0.path().join("source")
    }

    fn output(&self) -> PathBuf {
        self.0.path().join("output")
    }

    fn plan(&self) -> PackPlan {
        PackPlan::new(self.source(), &PackOptions { shard_bytes: 1, ..PackOptions::default() }).unwrap()
    }

    fn pack(&self) -> PackSummary {
        self.plan().write(self.output(), |_| true).unwrap()
    }

    /// Number of archives, and of those that are not intact.
    fn check(&self) -> (usize, usize) {
        let (shards, problems) = check_packed(self.output()).unwrap();
        (shards, problems.len())
    }
}

#[test]
fn archives_of_an_earlier_source_are_not_intact_before_they_are_replaced() {
    let folder = Folder::new(&["b.bin", "c.bin"]);
    folder.pack();
    assert_eq!(folder.check(), (2, 0));
    folder.put("a.bin");
    let stopped = folder.plan().write(folder.output(), |_| false).unwrap_err();
    assert!(matches!(stopped, PackError::Stopped), "{stopped}");
    assert_eq!(folder.check(), (3, 3), "each archive has another file than before");
    assert_eq!(folder.pack().kept, 0);
    assert_eq!(folder.check(), (3, 0));
}

#[test]
fn archives_after_the_last_one_are_removed_whether_or_not_the_manifest_names_them() {
    let folder = Folder::new(&["a.bin", "b.bin", "c.bin"]);
    folder.pack();
    fs::remove_file(folder.source().join("c.bin")).unwrap();
    for name in ["shard-000003.tar", "shard-000004.tar.tmp", "shard-5.tar", "notes"] {
        fs::write(folder.output().join(name), "").unwrap();
    }
    assert_eq!(folder.pack(), PackSummary { shards: 2, samples: 2, kept: 2 });
    let names = fs::read_dir(folder.output()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["manifest.jsonl", "notes", "shard-000000.tar", "shard-000001.tar", "shard-5.tar"]);
    assert_eq!(PackFormat::Tar.number(&PackFormat::Tar.name(1_234_567)), Some(1_234_567));
}

#[test]
fn an_archive_after_the_last_one_is_found() {
    let folder = Folder::new(&["a.bin", "b.bin", "c.bin"]);
    folder.pack();
    let last = folder.output().join("shard-000002.tar");
    let kept = fs::read(&last).unwrap();
    fs::remove_file(folder.source().join("c.bin")).unwrap();
    folder.pack();
    fs::write(folder.output().join("shard-000004.tar.tmp"), "").unwrap();
    assert_eq!(folder.check(), (2, 0));
    // As if the call had been killed before it removed the archive.
    fs::write(&last, kept).unwrap();
    let (shards, problems) = check_packed(folder.output()).unwrap();
    assert_eq!((shards, problems.len()), (3, 1), "{problems:?}");
    assert!(problems[0].contains("shard-000002.tar` is left over"), "{problems:?}");
    folder.pack();
    assert_eq!(folder.check(), (2, 0));
}

#[test]
fn a_class_without_images_is_refused() {
    let folder = Folder::new(&["ant/1.png", "bee/1.png", "README.md", ".git/1.png"]);
    let plan = || PackPlan::new(folder.source(), &PackOptions::default());
    assert_eq!(plan().unwrap().header.classes, ["ant", "bee"]);
    fs::remove_file(folder.source().join("ant/1.png")).unwrap();
    let refused = plan().unwrap_err();
    assert!(matches!(&refused, PackError::EmptyClass(path) if path.ends_with("ant")), "{refused}");
    fs::remove_dir(folder.source().join("ant")).unwrap();
    assert_eq!(plan().unwrap().header.classes, ["bee"]);
}

#[test]
fn images_that_change_places_get_their_new_labels() {
    let folder = Folder::new(&["ant/1.png", "bee/2.png", "cat/3.png"]);
    let path = |name: &str| folder.source().join(name);
    let time = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for name in ["ant/1.png", "bee/2.png", "cat/3.png"] {
        File::options().append(true).open(path(name)).unwrap().set_modified(time).unwrap();
    }
    folder.pack();
    fs::rename(path("ant/1.png"), path("bee/1.png")).unwrap();
    fs::rename(path("bee/2.png"), path("ant/2.png")).unwrap();
    assert_eq!(folder.pack().kept, 1);
    let archive = fs::read(folder.output().join("shard-000000.tar")).unwrap();
    assert!(archive.windows(9).any(|bytes| bytes == b"bee/2.png"), "the file that is in `ant` now");
}

#[test]
fn an_archive_whose_line_was_cut_off_is_unfinished() {
    let folder = Folder::new(&["a.bin", "b.bin", "c.bin"]);
    folder.pack();
    let path = folder.output().join("manifest.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = whole.lines().collect();
    // A full disk has cut off a line, and another thread has added one behind it.
    let joined = [&lines[1][..20], lines[2]].concat();
    lines.splice(1..3, [&joined[..]]);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    assert_eq!(folder.check(), (3, 2));
    assert_eq!(folder.pack().kept, 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
}

#[test]
fn a_manifest_with_too_many_archives_is_refused() {
    let folder = Folder::new(&["a.bin"]);
    folder.pack();
    let path = folder.output().join("manifest.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    assert_eq!(whole.matches("\"shards\":1,").count(), 1);
    fs::write(&path, whole.replace("\"shards\":1,", "\"shards\":1000000000000,")).unwrap();
    let refused = check_packed(folder.output()).unwrap_err();
    assert!(matches!(refused, PackError::OtherManifest(_)), "{refused}");
}

#[test]
fn what_other_users_can_change_is_not_continued() {
    let folder = Folder::new(&["a.bin"]);
    let victim = folder.0.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    folder.pack();
    // The archive is written under this name first.
    fs::remove_file(folder.output().join("shard-000000.tar")).unwrap();
    symlink(&victim, folder.output().join("shard-000000.tar.tmp")).unwrap();
    folder.pack();
    assert_eq!(folder.check(), (1, 0));
    let manifest = folder.output().join("manifest.jsonl");
    let refused = || folder.plan().write(folder.output(), |_| true).unwrap_err().to_string();
    fs::set_permissions(&manifest, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(refused().contains("other users may write to"));
    fs::rename(&manifest, folder.output().join("renamed")).unwrap();
    symlink("renamed", &manifest).unwrap();
    assert!(refused().contains("is not a regular file"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
}

#[test]
fn a_file_that_changes_after_the_plan_is_refused() {
    let folder = Folder::new(&["a.bin"]);
    let plan = folder.plan();
    fs::write(folder.source().join("a.bin"), "A.bin").unwrap();
    let changed = plan.write(folder.output(), |_| true).unwrap_err();
    assert!(matches!(&changed, PackError::Changed(path) if path.ends_with("a.bin")), "{changed}");
}
