//! Lists files on servers.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use glob::{MatchOptions, Pattern};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, path::Path};

use super::{
    super::{DataFile, Location, found, patterns, whole},
    Remote,
    address::{Address, Scheme},
    names::{ListedTables, folder_of_table, is_description, matches_hidden, possible_log_folders},
    object::{Limits, wait},
};
use crate::error::{DataError, DataProblem, Result};

/// Maximum number of files that are asked for at the same time.
const PARALLEL: usize = 16;

/// What the keys of a table's files begin with, and the name of the table's format.
type Table = (String, &'static str);

/// A URL, its store and its key there.
type ObjectName = (String, Arc<dyn ObjectStore>, Path);

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
        let mut names: Vec<ObjectName> = Vec::new();
        for url in patterns::expand_braces(pattern).map_err(|problem| failed(pattern, problem))? {
            let address = Address::parse(&url).map_err(|problem| failed(&url, problem))?;
            let Some(mut found) = self.search(&url, &address, extensions)? else {
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
    #[cfg(feature = "columnar")]
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
    fn search(&self, url: &str, address: &Address, extensions: &[&str]) -> Result<Option<Vec<DataFile>>> {
        let failed = |problem| DataError::new(Location::Url(url.to_owned()), problem);
        if address.scheme == Scheme::Http {
            let path = address.root.split('?').next().unwrap_or_default();
            if path.ends_with('/') || path.contains('*') {
                let text = "folders and wildcards on an HTTP server, which has no lists of files; name the files, \
                            with braces such as {000..099}";
                return Err(failed(DataProblem::Unsupported(text.to_owned())));
            }
            return Ok(None);
        }
        let Some(wanted) = Wanted::new(&address.key, extensions).map_err(failed)? else { return Ok(None) };
        // The extension "" lists all files of a folder, and these need not be one data set.
        let is_one = extensions != [""];
        let Listing { mut objects, folders, tables } = self.list_wanted(address, &wanted).map_err(failed)?;
        drop_folders(&mut objects, &folders);
        let mut tables = tables.iter().filter(|_| is_one);
        let chosen = wanted.choose(&objects, &folders).map_err(|empty| {
            let is_such = |(table, format): &&Table| {
                empty.starts_with(folder_of_table(table))
                    && extensions.iter().any(|extension| whole::may_have_rows(format, extension))
            };
            let problem = match tables.clone().find(is_such) {
                Some((_, format)) => DataProblem::TableFormat { format },
                None => DataProblem::NoFiles { extensions: extensions.join(" or ") },
            };
            DataError::new(Location::Url(address.url_of(&empty)), problem)
        })?;
        // The old rows of a table would be read too.
        let has_rows = |(table, format): &&Table| {
            let mut keys = chosen.iter().map(|meta| meta.location.as_ref());
            keys.any(|key| key.starts_with(table) && whole::may_have_rows(format, key))
        };
        if let Some((_, format)) = tables.find(has_rows) {
            return Err(failed(DataProblem::TableFormat { format }));
        }
        if is_one && chosen.iter().filter_map(|meta| meta.location.filename()).any(whole::is_of_ducklake) {
            return Err(failed(DataProblem::TableFormat { format: "DuckLake" }));
        }
        let is_left_out = |name: &str| found::is_left_out(&address.key, name);
        let mut files: Vec<_> = chosen
            .into_iter()
            .filter(|meta| !is_one || !meta.location.filename().is_some_and(is_left_out))
            .map(|meta| DataFile::on_server(Location::Url(address.url_of(meta.location.as_ref())), meta))
            .collect();
        if files.is_empty() {
            let extensions = extensions.join(" or ");
            let is_glob = wanted.pattern.is_some();
            return Err(failed(if is_glob {
                DataProblem::NotFound
            } else {
                DataProblem::NoFiles { extensions }
            }));
        }
        files.sort_by(|one, other| one.location.natural_order(&other.location));
        if is_one {
            check(address, &objects, &files).map_err(failed)?;
            if whole::may_be_parts(extensions) {
                whole::refuse_missing_parts(url, files.iter().map(|file| &file.location))?;
            }
        }
        Ok(Some(files))
    }

    /// Lists the objects below the folder before the first wildcard. [`Wanted::choose`] matches the wildcards. Below
    /// that folder there may be millions of objects that a pattern for one level does not match. For such a pattern,
    /// lists only the objects directly in the folder and those of the sub-folders that match.
    fn list_wanted(&self, address: &Address, wanted: &Wanted<'_>) -> Result<Listing, DataProblem> {
        let (store, limits) = (self.stores.get(address)?, self.limits);
        let folder = Path::parse(wanted.folder).map_err(|error| DataProblem::Pattern(error.to_string()))?;
        let mut tables = ListedTables::default();
        let mut add_table = |key: &Path| tables.add(key.as_ref());
        if !wanted.is_one_level() {
            let objects = wait(async move { list_folder(limits, store, folder).await })?;
            objects.iter().for_each(|meta| add_table(&meta.location));
            return Ok(Listing { objects, folders: Vec::new(), tables: tables.all() });
        }
        let listing = Arc::clone(&store);
        let level = wait(async move { limits.request(listing.list_with_delimiter(Some(&folder))).await })?;
        let mut objects = level.objects;
        let mut folders = level.common_prefixes;
        folders.iter().for_each(&mut add_table);
        for folder in possible_log_folders(&folders, |folder| folder.filename().unwrap_or_default()) {
            let (listing, folder) = (Arc::clone(&store), folder.clone());
            let log = wait(async move { limits.request(listing.list_with_delimiter(Some(&folder))).await })?;
            log.objects.iter().for_each(|meta| add_table(&meta.location));
        }
        folders.retain(|folder| wanted.matches(folder.as_ref()));
        let asked: Vec<_> = folders
            .iter()
            .map(|folder| list_folder(limits, Arc::clone(&store), folder.clone()).boxed())
            .collect();
        let found =
            wait(async move { stream::iter(asked).buffered(PARALLEL).try_collect::<Vec<_>>().await })?;
        let found: Vec<ObjectMeta> = found.into_iter().flatten().collect();
        found.iter().for_each(|meta| add_table(&meta.location));
        objects.extend(found);
        Ok(Listing { objects, folders, tables: tables.all() })
    }

    /// Asks for the sizes and versions of files, many at a time.
    fn ask(&self, names: Vec<ObjectName>, files: &mut Vec<DataFile>) -> Result<()> {
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

/// What was found below the folder before the first wildcard.
struct Listing {
    objects: Vec<ObjectMeta>,
    /// The sub-folders that match a pattern for one level.
    folders: Vec<Path>,
    /// The tables of whose metadata an object was found.
    tables: Vec<Table>,
}

/// The objects that a URL with wildcards, or of a folder, stands for.
struct Wanted<'a> {
    /// The key in the URL.
    key: &'a str,
    /// The part of the key before the first wildcard, up to its last `/`.
    folder: &'a str,
    /// `None` if the key is that of a folder.
    pattern: Option<Pattern>,
    is_hidden: fn(&str) -> bool,
    extensions: &'a [&'a str],
}

impl<'a> Wanted<'a> {
    /// Returns `None` if `key` is that of one object.
    fn new(key: &'a str, extensions: &'a [&'a str]) -> Result<Option<Self>, DataProblem> {
        let is_glob = patterns::is_glob(key);
        if !(is_glob || key.is_empty() || key.ends_with('/')) {
            return Ok(None);
        }
        let fixed = key.find(['*', '?', '[']).unwrap_or(key.len());
        let folder = key[..fixed].rfind('/').map_or("", |slash| &key[..=slash]);
        let pattern = is_glob.then(|| Pattern::new(key.trim_end_matches('/'))).transpose();
        let pattern = pattern.map_err(|error| DataProblem::Pattern(error.to_string()))?;
        Ok(Some(Self { key, folder, pattern, is_hidden: found::hidden_names(extensions), extensions }))
    }

    /// True if only objects and folders directly in the folder can match.
    fn is_one_level(&self) -> bool {
        self.pattern.is_some() && !self.key[self.folder.len()..].contains('/') && !self.key.contains("**")
    }

    /// True if the wildcards match `path`, the key of an object or of a folder without the `/` at its end.
    fn matches(&self, path: &str) -> bool {
        let rules = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let matches = |pattern: &Pattern| pattern.matches_with(path, rules);
        self.pattern.as_ref().is_some_and(matches) && !matches_hidden(self.key, path, self.is_hidden)
    }

    /// Returns the objects among `objects` that match, and of each folder that matches those whose names end with one
    /// of the extensions, as for local files. `folders` are folders that match, perhaps not all.
    ///
    /// # Errors
    /// Returns the key of a folder that matches, but has no such objects.
    fn choose<'o>(
        &self,
        objects: &'o [ObjectMeta],
        folders: &'o [Path],
    ) -> Result<Vec<&'o ObjectMeta>, String> {
        // A name that exists is not a pattern, whatever characters it has.
        if let Some(named) = objects.iter().find(|meta| meta.location.as_ref() == self.key) {
            return Ok(vec![named]);
        }
        let is_data = |below: &str| {
            !below.split('/').any(self.is_hidden)
                && self.extensions.iter().any(|extension| below.ends_with(extension))
        };
        let exists = |key: &str| self.key.ends_with('/') && key.starts_with(self.key);
        if self.pattern.is_none() || objects.iter().any(|meta| exists(meta.location.as_ref())) {
            let below =
                |meta: &&ObjectMeta| meta.location.as_ref().strip_prefix(self.key).is_some_and(is_data);
            return Ok(objects.iter().filter(below).collect());
        }
        // Whether objects of a folder are wanted.
        let mut found: BTreeMap<&str, bool> = folders.iter().map(|folder| (folder.as_ref(), false)).collect();
        let mut wanted = Vec::new();
        for meta in objects {
            let key = meta.location.as_ref();
            let above = key.match_indices('/').map(|(slash, _)| &key[..slash]);
            let above: Vec<_> = above.filter(|folder| self.matches(folder)).collect();
            let is_wanted = (!self.key.ends_with('/') && self.matches(key))
                || above.iter().any(|folder| is_data(&key[folder.len() + 1..]));
            above.into_iter().for_each(|folder| *found.entry(folder).or_default() |= is_wanted);
            if is_wanted {
                wanted.push(meta);
            }
        }
        match found.into_iter().find(|(_, has_files)| !has_files) {
            // `**` also stands for folders without such files.
            Some((folder, _)) if !self.key.contains("**") => Err(format!("{folder}/")),
            _ => Ok(wanted),
        }
    }
}

/// Fails if `files` are those of several data sets, as some of the listed `objects` say.
fn check(address: &Address, objects: &[ObjectMeta], files: &[DataFile]) -> Result<(), DataProblem> {
    let is_description = |meta: &&ObjectMeta| meta.location.filename().is_some_and(is_description);
    let described = objects.iter().filter(is_description);
    let described: HashSet<_> = described.map(|meta| address.url_of(meta.location.as_ref())).collect();
    whole::refuse_several(files.iter().map(|file| &file.location), |path| {
        path.to_str().is_some_and(|path| described.contains(path))
    })
}

/// Drops the empty objects that some programs store in place of a folder. `folders` are folders that have objects,
/// perhaps not all.
fn drop_folders(objects: &mut Vec<ObjectMeta>, folders: &[Path]) {
    if objects.iter().all(|meta| meta.size > 0) {
        return;
    }
    let above =
        |key: &str| key.match_indices('/').map(|(slash, _)| key[..slash].to_owned()).collect::<Vec<_>>();
    let mut folders: HashSet<String> = folders.iter().map(ToString::to_string).collect();
    folders.extend(objects.iter().flat_map(|meta| above(meta.location.as_ref())));
    objects.retain(|meta| meta.size > 0 || !folders.contains(meta.location.as_ref()));
}

/// Lists a folder with its sub-folders.
async fn list_folder(
    limits: Limits,
    store: Arc<dyn ObjectStore>,
    folder: Path,
) -> Result<Vec<ObjectMeta>, DataProblem> {
    let mut answers = store.list(Some(&folder));
    let mut listed = Vec::new();
    // Each answer has a thousand files and a deadline of its own.
    while let Some(meta) = limits.request(answers.try_next()).await? {
        listed.push(meta);
    }
    Ok(listed)
}

/// Asks for the size and version of a file.
async fn describe(limits: Limits, (url, store, path): ObjectName) -> Result<DataFile> {
    let location = Location::Url(url);
    // An HTTP server's store has one file, whose path is empty.
    let meta = if path.as_ref().is_empty() {
        describe_by_byte(limits, &*store, &path).await
    } else {
        match limits.request(store.head(&path)).await {
            // The answer to HEAD has no content, which would say whether the bucket is missing.
            Err(DataProblem::NotFound) => describe_by_byte(limits, &*store, &path).await,
            meta => meta,
        }
    };
    match meta {
        Ok(meta) => Ok(DataFile::on_server(location, &meta)),
        Err(problem) => Err(DataError::new(location, problem)),
    }
}

/// Reads the first byte instead of asking with HEAD: a signed URL may be valid for GET only, and a server
/// that sends no ranges is found before the first epoch.
async fn describe_by_byte(
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
        Err(DataProblem::Server { status: 206 }) => {
            let text = "the server sends another part of the file than was asked for; download the file, or use another \
                        server";
            Err(DataProblem::Store(text.to_owned()))
        }
        other => other,
    }
}
