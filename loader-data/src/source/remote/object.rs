//! A file on a server.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    ops::Range,
    pin::pin,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt, TryStreamExt,
    future::{Either, select},
    stream,
};
use loader_core::{DatasetMemory, internal::Reclaimable};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, path::Path};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    super::DataFile,
    super::StoreOptions,
    super::blob::GAP,
    cache::Cache,
    client::{LAST, Last},
    io, problem, ranges,
};
use crate::error::DataProblem;

/// Maximum number of requests that one read has under way.
pub(super) const PARALLEL: usize = 8;

/// Max time of an answer that is made of many requests.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// A file on a server, of the version that was listed.
#[derive(Clone)]
pub(in super::super) struct Object {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) file: DataFile,
    pub(super) limits: Limits,
    /// The endpoint and the URL, for the cache.
    pub(super) identity: Arc<str>,
    pub(super) cache: Option<Arc<Cache>>,
    /// For a read ahead that fills the cache.
    pub(super) ahead: Option<Turns>,
}

/// The limits of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) timeout: Duration,
    max_retries: usize,
}

impl Limits {
    pub(super) fn new(options: &StoreOptions) -> Self {
        Self { timeout: options.timeout, max_retries: options.max_retries }
    }

    /// Waits for `work` until the deadline.
    pub(super) async fn request<T>(
        self,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, DataProblem> {
        let started = Instant::now();
        let watched = async {
            let answer = tokio::time::timeout(self.timeout, work).await;
            LAST.with(|last| match (answer, &*last.borrow()) {
                (Ok(answer), last) => {
                    answer.map_err(|error| problem::of_request(&error, last, started.elapsed()))
                }
                (Err(_), last) => Err(problem::of_deadline(last, self.timeout)),
            })
        };
        LAST.scope(RefCell::new(Last::Other), watched).await
    }
}

/// Runs `work` on the thread for network I/O.
pub(super) fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T, DataProblem>> + Send + 'static,
) -> Result<T, DataProblem> {
    io::run(LONG, work).unwrap_or_else(|stopped| Err(problem_of(stopped)))
}

fn problem_of(stopped: io::Stopped) -> DataProblem {
    match stopped {
        io::Stopped::TimedOut => DataProblem::Timeout { after: LONG },
        io::Stopped::Failed(error) => DataProblem::Store(error.to_string()),
    }
}

/// A read that goes on while its caller does other work. Dropping it cancels its requests, except those that were sent
/// to fill the cache.
#[derive(Debug)]
pub(in super::super) struct Ahead {
    read: Reading,
    /// Its value is true once the caller waits. Dropping it tells the read that no caller will.
    needed: watch::Sender<bool>,
}

#[derive(Debug)]
enum Reading {
    Fetched {
        wanted: Vec<Range<u64>>,
        pieces: Vec<Range<u64>>,
        task: io::Task<Result<Vec<Bytes>, DataProblem>>,
    },
    Cached(JoinHandle<Result<Vec<Bytes>, DataProblem>>),
}

impl Ahead {
    /// Waits for the bytes of each range. Returns `None` if the read had failed before this call. The server may answer
    /// again since then, so the caller reads the ranges itself.
    ///
    /// # Errors
    /// Returns the problem if the read fails during this call: its request has used up its time or its retries. Another
    /// request could double the time of the wait.
    pub(in super::super) fn wait(self) -> Result<Option<Vec<Bytes>>, DataProblem> {
        let has_ended = match &self.read {
            Reading::Fetched { task, .. } => task.has_ended(),
            Reading::Cached(thread) => thread.is_finished(),
        };
        // Requests that wait for their turn are sent now.
        self.needed.send_replace(true);
        let read = match self.read {
            Reading::Fetched { wanted, pieces, task } => {
                let fetched = task.wait().unwrap_or_else(|stopped| Err(problem_of(stopped)));
                let cut = |fetched: Vec<Bytes>| {
                    wanted.iter().map(|range| ranges::cut(&pieces, &fetched, range)).collect()
                };
                fetched.map(cut)
            }
            Reading::Cached(thread) => match thread.join() {
                Ok(read) => read,
                // The thread has panicked.
                Err(_) => return Ok(None),
            },
        };
        match read {
            Err(_) if has_ended => Ok(None),
            read => read.map(Some),
        }
    }
}

/// Tells a read ahead when it may send its next requests.
///
/// A request that is sent ahead holds a permit. The permits limit the number of such requests, because the requests of
/// many shards would slow each other down until all exceed their deadlines. They also leave room for the requests that a
/// shard waits for, which need no permit. Last, they limit the bytes under way to 8 requests of at most
/// [`ranges::PIECE`] bytes, 64 MiB. The memory of a dataset does not count all of these bytes, because with a cache,
/// whole blocks are fetched for a few bytes.
///
/// A request takes a permit when its turn comes, and no read waits for more than one permit. Alternative considered: a
/// read takes the permits of all its requests at once. Rejected because a read of 8 requests then waits until the
/// process has no other request under way, and all later reads wait behind it.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    permits: Arc<Semaphore>,
    /// Its value is true once the caller waits. It is closed once the [`Ahead`] is dropped.
    needed: watch::Receiver<bool>,
}

/// A number of requests that may be sent now.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) requests: usize,
    /// Held until the requests have ended. `None` if they need no permits.
    _permits: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits until this process may send one more request ahead, or until the caller of the read waits for it. The turn
    /// takes the permits that are free, at most `max`, and the read may send one request for each.
    ///
    /// # Errors
    /// Returns an error if the read was dropped.
    async fn next(mut self, max: usize) -> Result<Turn, DataProblem> {
        let permit = pin!(Arc::clone(&self.permits).acquire_owned());
        let needed = pin!(async { self.needed.wait_for(|needed| *needed).await.is_ok() });
        let mut permits = match select(needed, permit).await {
            Either::Left((false, _)) => return Err(unwanted()),
            Either::Left((true, _)) | Either::Right((Err(_), _)) => {
                return Ok(Turn { requests: max, _permits: None });
            }
            Either::Right((Ok(permit), _)) => permit,
        };
        while permits.num_permits() < max
            && let Ok(more) = Arc::clone(&self.permits).try_acquire_owned()
        {
            permits.merge(more);
        }
        Ok(Turn { requests: permits.num_permits(), _permits: Some(permits) })
    }
}

/// The error of a read ahead that was dropped. No caller gets it.
fn unwanted() -> DataProblem {
    DataProblem::Store("the read was dropped".to_owned())
}

impl Object {
    /// Returns the bytes of each range. Ranges with at most `gap` bytes between them are fetched together; a request asks
    /// for at most [`ranges::PIECE`] bytes. With a cache, whole blocks are fetched.
    ///
    /// # Errors
    /// Returns an error if the file is no longer the one that was listed, or a request fails until its
    /// deadline.
    pub(in super::super) fn read(&self, wanted: &[Range<u64>], gap: u64) -> Result<Vec<Bytes>, DataProblem> {
        if let Some(cache) = &self.cache {
            return cache.read(self, wanted);
        }
        let pieces = ranges::pieces(wanted, gap);
        let fetched = self.fetch(pieces.clone())?;
        Ok(wanted.iter().map(|range| ranges::cut(&pieces, &fetched, range)).collect())
    }

    /// Starts to read the ranges. Returns `None` if the cache has their bytes, so that reading them costs less than a
    /// thread, if `memory` has no room for them, or if a thread cannot be started.
    pub(in super::super) fn read_ahead(
        &self,
        wanted: Vec<Range<u64>>,
        memory: &DatasetMemory,
    ) -> Option<Reclaimable<Ahead>> {
        if self.cache.as_ref().is_some_and(|cache| cache.has(self, &wanted)) {
            return None;
        }
        let (needed, is_needed) = watch::channel(false);
        let turns = Turns { permits: io::permits().ok()?, needed: is_needed };
        if self.cache.is_some() {
            let object = Self { ahead: Some(turns), ..self.clone() };
            let bytes = ranges::bytes(&wanted);
            let read = move || object.read(&wanted, GAP);
            let thread = thread::Builder::new().name("loader-ahead".to_owned());
            let start = || Some(Ahead { read: Reading::Cached(thread.spawn(read).ok()?), needed });
            return Reclaimable::new(memory, bytes, start);
        }
        let pieces = ranges::pieces(&wanted, GAP);
        Reclaimable::new(memory, ranges::bytes(&pieces), || {
            let task = io::start(LONG, self.fetching(pieces.clone(), Some(turns))).ok()?;
            Some(Ahead { read: Reading::Fetched { wanted, pieces: pieces.clone(), task }, needed })
        })
    }

    /// Waits for the next turn of a read ahead that fills the cache, of at most `max` requests. A read that
    /// does not read ahead may send `max` requests at any time.
    ///
    /// # Errors
    /// Returns an error if this is a read ahead that was dropped.
    pub(super) fn turn(&self, max: usize) -> Result<Turn, DataProblem> {
        match &self.ahead {
            Some(turns) => wait(turns.clone().next(max)),
            None => Ok(Turn { requests: max, _permits: None }),
        }
    }

    /// Fetches `pieces`, several at a time.
    pub(super) fn fetch(&self, pieces: Vec<Range<u64>>) -> Result<Vec<Bytes>, DataProblem> {
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        wait(self.fetching(pieces, None))
    }

    /// Fetches `pieces`, several at a time, each when its turn comes.
    fn fetching(
        &self,
        pieces: Vec<Range<u64>>,
        turns: Option<Turns>,
    ) -> impl Future<Output = Result<Vec<Bytes>, DataProblem>> + Send + use<> {
        let request = |piece| {
            let (object, turns) = (self.clone(), turns.clone());
            async move {
                let _turn = match turns {
                    Some(turns) => Some(turns.next(1).await?),
                    None => None,
                };
                object.fetch_piece(piece).await
            }
            .boxed()
        };
        let requests: Vec<_> = pieces.into_iter().map(request).collect();
        async move { stream::iter(requests).buffered(PARALLEL).try_collect().await }
    }

    async fn fetch_piece(&self, piece: Range<u64>) -> Result<Bytes, DataProblem> {
        let len = piece.end - piece.start;
        let (meta, bytes) = self.limits.request(self.get(piece)).await.map_err(|problem| match problem {
            // The condition on the version does not hold, or the file is shorter.
            DataProblem::Server { status: 412 } => self.changed("another version".to_owned()),
            DataProblem::Server { status: 206 | 416 } => self.changed("fewer bytes".to_owned()),
            other => other,
        })?;
        if !self.is_of_file(&meta) {
            return Err(self.changed(DataFile::on_server(self.file.location.clone(), &meta).text()));
        }
        if bytes.len() as u64 != len {
            // The object is the one that was listed, so it is not its content that is too short.
            return Err(problem::cut_after(bytes.len() as u64, len));
        }
        Ok(bytes)
    }

    /// Sends the request, again if the body of the answer is cut. A proxy may end a body early as if it were whole.
    async fn get(&self, piece: Range<u64>) -> object_store::Result<(ObjectMeta, Bytes)> {
        let mut retries = 0;
        loop {
            let options = GetOptions {
                range: Some(GetRange::Bounded(piece.clone())),
                // A weak ETag matches nothing; what the answer says of its version is checked in any case.
                if_match: self.file.etag().filter(|etag| !etag.starts_with("W/")).map(str::to_owned),
                ..GetOptions::default()
            };
            let answer = async {
                let answer = self.store.get_opts(&self.path, options).await?;
                Ok((answer.meta.clone(), answer.bytes().await?))
            };
            let answer = answer.await;
            let is_cut = match &answer {
                Ok((meta, bytes)) => self.is_of_file(meta) && (bytes.len() as u64) < piece.end - piece.start,
                Err(error) => problem::is_cut_body(error),
            };
            if !is_cut || retries >= self.limits.max_retries {
                return answer;
            }
            retries += 1;
            tokio::time::sleep(Duration::from_millis(100) * retries as u32).await;
        }
    }

    /// True if `meta` describes the file that was listed.
    fn is_of_file(&self, meta: &ObjectMeta) -> bool {
        let now = DataFile::on_server(self.file.location.clone(), meta);
        (now.len, &now.version) == (self.file.len, &self.file.version)
    }

    fn changed(&self, found: String) -> DataProblem {
        DataProblem::Changed { expected: self.file.text(), found }
    }
}

impl fmt::Debug for Object {
    /// The store is not shown, because it has the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("file", &self.file.location.to_string()).finish_non_exhaustive()
    }
}
