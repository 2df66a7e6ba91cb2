//! Lists files on servers.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use glob::{MatchOptions, Pattern};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, path::Path};

use super::{
    super::{DataFile, Location, patterns},
    Remote,
    address::{Address, Scheme},
    object::{Limits, wait},
};
use crate::error::{DataError, DataProblem, Result};

/// Max number of files that are asked for at the same time.
const PARALLEL: usize = 16;

/// A URL, its store and its key there.
type Found = (String, Arc<dyn ObjectStore>, Path);

impl Remote {
    /// Adds the files that `pattern` stands for: a URL of a file, of a folder (with `/` at its end), or with
    /// braces and wildcards.
    pub(in super::super) fn list(
        &self,
        pattern: &str,
        extensions: &[&str],
        files: &mut Vec<DataFile>,
    ) -> Result<()> {
        let failed = |url: &str, problem| DataError::new(Location::Url(url.to_owned()), problem);
        let mut names: Vec<Found> = Vec::new();
        for url in patterns::expand_braces(pattern).map_err(|problem| failed(pattern, problem))? {
            let address = Address::parse(&url).map_err(|problem| failed(&url, problem))?;
            let searched = self.search(&address, extensions).map_err(|problem| failed(&url, problem))?;
            let Some(mut found) = searched else {
                let named =
                    || Ok::<_, DataProblem>((url.clone(), self.stores.get(&address)?, address.path()?));
                names.push(named().map_err(|problem| failed(&url, problem))?);
                continue;
            };
            // The order of the names before and after a search is kept.
            self.ask(std::mem::take(&mut names), files)?;
            files.append(&mut found);
        }
        self.ask(names, files)
    }

    /// Describes the file at `url`, which is no pattern: a `*` is only a character.
    pub(in super::super) fn describe(&self, url: &str) -> Result<DataFile> {
        let found = || {
            let address = Address::parse(url)?;
            Ok::<_, DataProblem>((url.to_owned(), self.stores.get(&address)?, address.path()?))
        };
        let found = found().map_err(|problem| DataError::new(Location::Url(url.to_owned()), problem))?;
        let mut files = Vec::new();
        self.ask(vec![found], &mut files)?;
        Ok(files.remove(0))
    }

    /// Lists a folder or what a wildcard matches. Returns `None` if `address` is one file.
    fn search(&self, address: &Address, extensions: &[&str]) -> Result<Option<Vec<DataFile>>, DataProblem> {
        if address.scheme == Scheme::Http {
            let path = address.root.split('?').next().unwrap_or_default();
            if path.ends_with('/') || path.contains('*') {
                let text = "folders and wildcards on an HTTP server, which has no lists of files; name the files, \
                            with braces such as {000..099}";
                return Err(DataProblem::Unsupported(text.to_owned()));
            }
            return Ok(None);
        }
        let is_glob = patterns::is_glob(&address.key);
        if !(is_glob || address.key.is_empty() || address.key.ends_with('/')) {
            return Ok(None);
        }
        let pattern = Pattern::new(&address.key).map_err(|error| DataProblem::Pattern(error.to_string()))?;
        // The wildcards are matched here; the server lists what is below the folder before the first one.
        let fixed = address.key.find(['*', '?', '[']).unwrap_or(address.key.len());
        let folder = address.key[..fixed].rfind('/').map_or("", |slash| &address.key[..=slash]);
        let rules = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let is_wanted = |key: &str| {
            if is_glob {
                return pattern.matches_with(key, rules) && !patterns::is_hidden(&address.key, key);
            }
            let name = &key[folder.len().min(key.len())..];
            let hidden = name.split('/').any(|part| part.starts_with('.'));
            !hidden && extensions.iter().any(|extension| name.ends_with(extension))
        };
        // Below a folder there may be millions of files that a pattern for one level does not match.
        let one_level = is_glob && !address.key[fixed..].contains('/') && !address.key.contains("**");
        let listed = self.list_folder(address, folder, one_level)?;
        let mut files: Vec<_> = listed
            .iter()
            .filter(|meta| is_wanted(meta.location.as_ref()))
            .map(|meta| DataFile::on_server(Location::Url(address.url_of(meta.location.as_ref())), meta))
            .collect();
        if files.is_empty() {
            let extensions = extensions.join(" or ");
            return Err(if is_glob { DataProblem::NotFound } else { DataProblem::NoFiles { extensions } });
        }
        files.sort_by(|one, other| one.location.cmp(&other.location));
        Ok(Some(files))
    }

    /// Lists a folder, with its sub-folders unless `one_level`.
    fn list_folder(
        &self,
        address: &Address,
        folder: &str,
        one_level: bool,
    ) -> Result<Vec<ObjectMeta>, DataProblem> {
        let (store, limits) = (self.stores.get(address)?, self.limits);
        let folder = Path::parse(folder).map_err(|error| DataProblem::Pattern(error.to_string()))?;
        wait(async move {
            if one_level {
                return Ok(limits.request(store.list_with_delimiter(Some(&folder))).await?.objects);
            }
            let mut answers = store.list(Some(&folder));
            let mut listed = Vec::new();
            // Each answer has a thousand files and a deadline of its own.
            while let Some(meta) = limits.request(answers.try_next()).await? {
                listed.push(meta);
            }
            Ok(listed)
        })
    }

    /// Asks for the sizes and versions of files, many at a time.
    fn ask(&self, names: Vec<Found>, files: &mut Vec<DataFile>) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let limits = self.limits;
        let asked: Vec<_> = names.into_iter().map(|name| describe(limits, name).boxed()).collect();
        let asked =
            wait(async move { Ok(stream::iter(asked).buffered(PARALLEL).try_collect::<Vec<_>>().await) });
        let asked = asked.map_err(|problem| DataError::new("the files", problem))?;
        files.append(&mut asked?);
        Ok(())
    }
}

/// Asks for the size and version of a file.
async fn describe(limits: Limits, (url, store, path): Found) -> Result<DataFile> {
    let location = Location::Url(url);
    // An HTTP server's store has one file, whose path is empty.
    let meta = if path.as_ref().is_empty() {
        describe_http(limits, &*store, &path).await
    } else {
        limits.request(store.head(&path)).await
    };
    match meta {
        Ok(meta) => Ok(DataFile::on_server(location, &meta)),
        Err(problem) => Err(DataError::new(location, problem)),
    }
}

/// Reads the first byte instead of asking with HEAD: a signed URL may be valid for GET only, and a server
/// that sends no ranges is found before the first epoch.
async fn describe_http(
    limits: Limits,
    store: &dyn ObjectStore,
    path: &Path,
) -> Result<ObjectMeta, DataProblem> {
    let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
    let asked = async {
        let answer = store.get_opts(path, options).await?;
        let meta = answer.meta.clone();
        // The connection can be used again once the byte was read.
        answer.bytes().await.map(|_| meta)
    };
    match limits.request(asked).await {
        // The file is empty.
        Err(DataProblem::Server { status: 416 }) => limits.request(store.head(path)).await,
        other => other,
    }
}
