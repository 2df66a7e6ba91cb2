//! Folders that files must not leave through symbolic links.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Location, whole::is_commit};
use crate::error::{DataError, DataProblem, Result};

/// The folders without symbolic links that the files which a file names must be in; none if that file is on a server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Roots(Vec<OsString>);

impl Roots {
    /// Returns the folder of `file`. If the file is a symbolic link itself, it may also name files beside its target.
    /// In the cache of the Hugging Face Hub, the file may also name files of its repository, even if the file is no
    /// link, because the user may have replaced the link by an edited copy.
    ///
    /// # Errors
    /// Returns an error if `file` does not exist or cannot be reached.
    pub(crate) fn of(file: &Location) -> Result<Self> {
        let (Location::Path(path), Location::Path(folder)) = (file, file.folder().or_here()) else {
            return Ok(Self::default());
        };
        let failed = |error: io::Error| DataError::new(file, error);
        let target = Location::from(fs::canonicalize(path).map_err(failed)?).folder();
        let folder = fs::canonicalize(folder).map_err(failed)?;
        let blobs = blobs_of(&folder);
        Ok(Self([folder.into(), target.as_path().into()].into_iter().chain(blobs.map(Into::into)).collect()))
    }

    /// Returns where symbolic links on the way to `file` lead if that is in none of the folders.
    ///
    /// # Errors
    /// Returns an error if `file` does not exist or cannot be reached.
    pub(crate) fn target_outside(&self, file: &Location) -> Result<Option<Location>> {
        let Location::Path(path) = file else { return Ok(None) };
        let target = fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DataError::new(file, DataProblem::NotFound),
            _ => DataError::new(file, error),
        })?;
        let is_inside = self.0.iter().any(|root| target.starts_with(root));
        Ok((!is_inside).then(|| Location::from(target)))
    }
}

/// Returns the folder to which the links of files lead if `folder` is in a version in the cache of the Hugging Face
/// Hub: `x/blobs` if it is `x/snapshots/COMMIT` or below it. If `x/blobs` is itself a symbolic link, this permits no
/// file, because the canonical path of a file does not begin with a link.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let is_version = |folder: &&Path| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        is_commit(&name) && folder.parent().is_some_and(|parent| parent.ends_with("snapshots"))
    };
    let version = folder.ancestors().find(is_version)?;
    Some(version.parent()?.parent()?.join("blobs"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes `folder` with a file `named`, both given as paths or as links (`PATH -> TARGET`), and returns whether
    /// README.md in `folder` may name it.
    fn may_name(folder: &str, readme: &str, named: &str) -> bool {
        let outer = tempfile::tempdir().unwrap();
        let make = |entry: &str| {
            let (path, target) = entry.split_once(" -> ").unwrap_or((entry, ""));
            let path = outer.path().join(folder).join(path);
            let parent = path.parent().unwrap();
            fs::create_dir_all(parent).unwrap();
            if target.is_empty() {
                return fs::write(path, "").unwrap();
            }
            fs::create_dir_all(parent.join(target).parent().unwrap()).unwrap();
            fs::write(parent.join(target), "").unwrap();
            symlink(target, path).unwrap();
        };
        [readme, named].into_iter().for_each(make);
        let folder = Location::from(outer.path().join(folder));
        let roots = Roots::of(&folder.join("README.md")).unwrap();
        let named = folder.join(named.split_once(" -> ").map_or(named, |(path, _)| path));
        roots.target_outside(&named).unwrap().is_none()
    }

    #[test]
    fn files_of_the_same_version_in_the_cache_of_the_hub_may_be_named() {
        let version = format!("hub/snapshots/{}", "0a".repeat(20));
        let linked = "README.md -> ../../blobs/1";
        for (folder, readme, named, expected) in [
            (&version[..], linked, "a.csv -> ../../blobs/2", true),
            (&version, linked, "data/a.csv -> ../../../blobs/2", true),
            // The user has edited a copy of README.md.
            (&version, "README.md", "a.csv -> ../../blobs/2", true),
            (&version, "README.md", "data/a.csv -> ../../../blobs/2", true),
            (&version, "README.md", "a.csv -> ../../other/2", false),
            (&version, "README.md", "a.csv -> ../../../other/blobs/2", false),
            ("hub/snapshots/main", "README.md", "a.csv -> ../../blobs/2", false),
            ("hub/versions/1", "README.md", "a.csv -> ../../blobs/2", false),
            // DVC.
            ("data", "README.md", "a.csv -> ../.dvc/cache/files/md5/ab/c", false),
            (
                "data",
                "README.md -> ../.dvc/cache/files/md5/12/3",
                "a.csv -> ../.dvc/cache/files/md5/ab/c",
                false,
            ),
            (".", "README.md", "a.csv -> .dvc/cache/files/md5/ab/c", true),
        ] {
            assert_eq!(may_name(folder, readme, named), expected, "{folder}: {readme}, {named}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_folder_of_the_hub_leads_outside() {
        let outer = tempfile::tempdir().unwrap();
        let version = outer.path().join("hub/snapshots").join("0a".repeat(20));
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("README.md"), "").unwrap();
        fs::write(outer.path().join("secret.csv"), "").unwrap();
        symlink("..", outer.path().join("hub/blobs")).unwrap();
        symlink("../../blobs/secret.csv", version.join("a.csv")).unwrap();
        let folder = Location::from(version);
        let roots = Roots::of(&folder.join("README.md")).unwrap();
        assert!(roots.target_outside(&folder.join("a.csv")).unwrap().is_some());
    }
}
