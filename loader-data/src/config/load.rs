//! Reads the section `[dataset]` of a config file.

use std::path::Path;

use loader_core::config::{Config, ConfigError};

use super::dataset::{DatasetConfig, KindName, KindOnly};
use crate::formats::image_folder::{ImageFolderOptions, url_scheme};

impl DatasetConfig {
    /// Reads a config file, and returns its section `[dataset]` with paths that start at the folder of the file
    /// that has them. The rest of the config is returned too.
    ///
    /// # Errors
    /// The errors of [`Config::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<(Self, Config<KindOnly>), ConfigError> {
        let path = path.as_ref();
        let config = Config::load_as::<KindOnly>(path)?;
        let dataset = match config.dataset.kind {
            KindName::ImageFolder => {
                let mut images = Config::load_as::<ImageFolderOptions>(path)?.dataset;
                if url_scheme(&images.path).is_none() {
                    images.path = config.folder_of("dataset.path").join(&images.path);
                }
                #[cfg(feature = "records")]
                if let Some((key, folder)) = images.store.as_mut().and_then(|store| store.path_mut()) {
                    *folder = config.folder_of(&format!("dataset.{key}")).join(&folder);
                }
                Self::ImageFolder(images)
            }
            #[cfg(feature = "formats")]
            KindName::Records => {
                let mut records = Config::load_as::<super::records::RecordConfig>(path)?.dataset;
                records.relative_to_each(|key| config.folder_of(&format!("dataset.{key}")).to_owned());
                if let Some(location) = config.location("dataset").filter(|_| !records.names_files()) {
                    let (location, key, section) =
                        (location.clone(), "path".to_owned(), "dataset".to_owned());
                    return Err(ConfigError::MissingKey { location, key, section });
                }
                Self::Records(Box::new(records))
            }
        };
        Ok((dataset, config))
    }
}
