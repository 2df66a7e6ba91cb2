//! The formats of packed files.

/// The format of the files into which samples are packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackFormat {
    /// tar archives in WebDataset's layout.
    #[default]
    Tar,
    /// Parquet files with a row for each sample: its key in the column `__key__`, and a column for each field. What the
    /// extension of a field says decides the type of its column, as for [`TarShards`](crate::TarShards), but JSON stays
    /// text. A field that a sample does not have is null.
    Parquet,
}

impl PackFormat {
    const ALL: &[Self] = &[Self::Tar, Self::Parquet];

    /// Returns the name of the format in a manifest. A changed layout of the files needs another one.
    pub(super) fn in_manifest(self) -> &'static str {
        match self {
            Self::Tar => "loader-pack-1",
            Self::Parquet => "loader-pack-parquet-1",
        }
    }

    /// Returns the format whose name in a manifest is `name`.
    pub(super) fn of_manifest(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.in_manifest() == name)
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Tar => ".tar",
            Self::Parquet => ".parquet",
        }
    }

    /// Returns the name of a file.
    pub(super) fn name(self, shard: usize) -> String {
        format!("shard-{shard:06}{}", self.extension())
    }

    /// Returns the number of the file `name`; `None` if no file of this format has this name.
    pub(super) fn number(self, name: &str) -> Option<usize> {
        let number = name.strip_prefix("shard-")?.strip_suffix(self.extension())?.parse().ok()?;
        (self.name(number) == name).then_some(number)
    }
}
