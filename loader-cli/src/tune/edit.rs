//! Writes a setting into a config. Comments, order and format of the file stay.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use toml_edit::{DocumentMut, Item, TableLike, TomlError, Value};

use super::search::Setting;
use crate::replace_file;

/// Checks that the config at `path` can be written, but does not change it.
pub(super) fn check(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?;
    replace_file::check(&fs::canonicalize(path)?)
}

/// Writes the setting into the config at `path`. Reads the file again first, so edits that were made
/// while the command measured stay.
pub(super) fn write(path: &Path, setting: Setting) -> io::Result<()> {
    // A symbolic link stays one.
    let path = fs::canonicalize(path)?;
    let text = fs::read_to_string(&path)?;
    let edited = edited(&text, setting).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    replace_file::replace(&path, |file| file.write_all(edited.as_bytes()))
}

fn edited(text: &str, setting: Setting) -> Result<String, TomlError> {
    let mut document: DocumentMut = text.parse()?;
    let section = document.entry("loader").or_insert_with(toml_edit::table);
    // Reading the config has shown that it is a table.
    if let Some(section) = section.as_table_like_mut() {
        set(section, "num_workers", setting.num_workers);
        match setting.prefetch_factor {
            Some(batches) => set(section, "prefetch_factor", batches),
            None => remove(section, "prefetch_factor", "num_workers"),
        }
    }
    Ok(document.to_string())
}

fn set(section: &mut dyn TableLike, key: &str, number: usize) {
    // A TOML number has 64 bits with a sign; the number is at most 65,536.
    let mut new = Value::from(i64::try_from(number).unwrap_or(i64::MAX));
    match section.get_mut(key) {
        Some(Item::Value(value)) => {
            *new.decor_mut() = value.decor().clone();
            *value = new;
        }
        _ => drop(section.insert(key, Item::Value(new))),
    }
}

/// Removes `key`. Its comments move to `next`.
fn remove(section: &mut dyn TableLike, key: &str, next: &str) {
    let before = section.key(key).and_then(|key| key.leaf_decor().prefix()?.as_str()).unwrap_or_default();
    let before = before.to_owned();
    let Some(removed) = section.remove(key) else { return };
    let behind = removed.as_value().and_then(|value| value.decor().suffix()?.as_str()).unwrap_or_default();
    let mut comments = before;
    if behind.contains('#') {
        comments += &format!("{}\n", behind.trim());
    }
    if let Some(mut next) = section.key_mut(next) {
        let decor = next.leaf_decor_mut();
        let own = decor.prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
        decor.set_prefix(format!("{own}{comments}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_edited(before: &str, setting: Setting, after: &str) {
        let text = edited(before, setting).unwrap();
        assert_eq!(text, after);
        let config = loader_core::config::Config::from_toml(&text).unwrap();
        let written = loader_core::LoaderOptions::default().num_workers(setting.num_workers);
        assert_eq!(config.loader.num_workers, written.num_workers);
        assert_eq!(
            config.loader.prefetch_factor,
            setting.prefetch_factor.map(loader_core::PrefetchFactor::Fixed)
        );
    }

    #[test]
    fn only_the_two_values_change() {
        let before = "# top\n[loader]   # all of it\n\n# found by hand\nnum_workers   =  \"auto\" # or 4\nseed=1\n\n\
                      # batches\nprefetch_factor = 3# ahead\n\n[dataset]\npath = 'x' # y\n# end\n";
        assert_edited(
            before,
            Setting::new(12, 8),
            "# top\n[loader]   # all of it\n\n# found by hand\nnum_workers   =  12 # or 4\nseed=1\n\n\
             # batches\nprefetch_factor = 8# ahead\n\n[dataset]\npath = 'x' # y\n# end\n",
        );
        // Without workers the prefetch factor is invalid.
        assert_edited(
            before,
            Setting::new(0, 2),
            "# top\n[loader]   # all of it\n\n# found by hand\n\n# batches\n# ahead\nnum_workers   =  0 # or 4\n\
             seed=1\n\n[dataset]\npath = 'x' # y\n# end\n",
        );
    }

    #[test]
    fn absent_keys_are_added() {
        let setting = Setting::new(3, 2);
        assert_edited("", setting, "[loader]\nnum_workers = 3\nprefetch_factor = 2\n");
        assert_edited(
            "[dataset]\npath = 1\n# end\n",
            setting,
            "[dataset]\npath = 1\n\n[loader]\nnum_workers = 3\nprefetch_factor = 2\n# end\n",
        );
        assert_edited(
            "loader = { num_workers = { auto = { max = 4 } } } # auto\n",
            setting,
            "loader = { num_workers = 3 , prefetch_factor = 2 } # auto\n",
        );
        assert_edited(
            "loader.seed = 1 # s\n",
            Setting::new(0, 2),
            "loader.seed = 1 # s\nloader.num_workers = 0\n",
        );
        assert_edited(
            "[loader]\nseed = 1\n[loader.num_workers.auto]\nmin = 2\n",
            setting,
            "[loader]\nseed = 1\nnum_workers = 3\nprefetch_factor = 2\n",
        );
    }

    #[test]
    fn a_link_stays_a_link_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("run.toml"), folder.path().join("link.toml"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("run.toml", &link).unwrap();
        check(&link).unwrap();
        write(&link, Setting::new(0, 2)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "[loader]\nnum_workers = 0\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
    }
}
