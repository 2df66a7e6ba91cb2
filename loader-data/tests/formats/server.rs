//! A small server for tests: HTTP with ranges and conditions, and as much of S3 as lists files. It can answer
//! wrongly.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// What goes wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer is this status.
    Status(u16),
    /// No answer until the client leaves.
    Stall,
    /// The connection ends after this many bytes of the content.
    Cut(usize),
    /// The content has only this many bytes, although the answer says that it is the whole range.
    Short(usize),
    /// The content stops coming after this many bytes.
    StallAfter(usize),
    /// The content comes in this many parts, 10 ms apart.
    Slow(usize),
    /// The whole content, although a part was asked for.
    NoRanges,
    /// This `Content-Range`, or none.
    Range(Option<&'static str>),
    /// No `Content-Length`. The connection ends after the content.
    NoLength,
    /// A redirect to the URL that was asked for.
    Redirect,
}

/// A request that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path, with the query.
    pub(crate) target: String,
    pub(crate) range: Option<Range<usize>>,
    pub(crate) if_match: Option<String>,
}

#[derive(Debug, Clone)]
struct Object {
    content: Arc<Vec<u8>>,
    etag: Option<String>,
    modified: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    buckets: BTreeSet<String>,
    faults: VecDeque<Fault>,
    requests: Vec<Request>,
    /// Time that each answer takes.
    latency: Duration,
}

/// The server. It ends with the test program.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap().to_string(), state: Arc::default() };
        let serving = server.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (server, connection) = (serving.clone(), connection.unwrap());
                // An error is a client that has left.
                thread::spawn(move || drop(server.serve(&connection)));
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of `path` on this server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Puts an object with an ETag that depends on its content.
    pub(crate) fn put(&self, path: &str, content: impl Into<Vec<u8>>) {
        let content = content.into();
        let etag = format!(
            "\"{:x}\"",
            content.iter().fold(content.len() as u64, |hash, byte| {
                hash.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(*byte)
            })
        );
        self.put_with(path, content, Some(&etag), Some("Tue, 03 Nov 2026 10:00:00 GMT"));
    }

    pub(crate) fn put_with(
        &self,
        path: &str,
        content: impl Into<Vec<u8>>,
        etag: Option<&str>,
        modified: Option<&str>,
    ) {
        let object = Object {
            content: Arc::new(content.into()),
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        let mut state = self.state();
        state.buckets.extend(bucket_of(path).map(str::to_owned));
        state.objects.insert(path.to_owned(), object);
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state().objects.remove(path);
    }

    /// The next answers go wrong, one after the other.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// No further answer goes wrong.
    pub(crate) fn recover(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    /// Number of requests since the last call of [`requests`](Self::requests).
    pub(crate) fn seen(&self) -> usize {
        self.state().requests.len()
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }

    fn serve(&self, connection: &TcpStream) -> std::io::Result<()> {
        // Without this, the content of each answer waits up to 40 ms until the client has acknowledged the
        // head.
        connection.set_nodelay(true)?;
        let mut reader = BufReader::new(connection);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split(' ').map(str::to_owned);
            let (method, target) = (words.next().unwrap(), words.next().unwrap());
            let mut request = Request { method, target, range: None, if_match: None };
            loop {
                let mut header = String::new();
                reader.read_line(&mut header)?;
                let Some((name, value)) = header.trim().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "range" => {
                        let (start, end) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                        request.range = Some(start.parse().unwrap()..end.parse::<usize>().unwrap() + 1);
                    }
                    "if-match" => request.if_match = Some(value.to_owned()),
                    _ => {}
                }
            }
            let (fault, latency) = {
                let mut state = self.state();
                state.requests.push(request.clone());
                (state.faults.pop_front(), state.latency)
            };
            thread::sleep(latency);
            self.answer(&request, fault, connection)?;
        }
    }

    fn answer(
        &self,
        request: &Request,
        fault: Option<Fault>,
        mut connection: &TcpStream,
    ) -> std::io::Result<()> {
        match fault {
            Some(Fault::Status(status)) => {
                return write!(connection, "HTTP/1.1 {status} No\r\ncontent-length: 6\r\n\r\nsecret");
            }
            Some(Fault::Stall) => return wait_for_the_end(connection),
            Some(Fault::Redirect) => {
                let target = &request.target;
                return write!(
                    connection,
                    "HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n"
                );
            }
            _ => {}
        }
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let is_list = query.contains("list-type=2");
        let has_bucket = self.has_bucket(path, is_list);
        if is_list && has_bucket {
            let list = self.list(path, query);
            return write!(connection, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len());
        }
        let Some(object) = self.state().objects.get(&decoded(path)[1..]).cloned() else {
            let is_missing = request.method != "HEAD" && !has_bucket;
            let code = if is_missing { "<Error><Code>NoSuchBucket</Code></Error>" } else { "" };
            let len = code.len();
            return write!(connection, "HTTP/1.1 404 Not Found\r\ncontent-length: {len}\r\n\r\n{code}");
        };
        if request.if_match.is_some() && request.if_match != object.etag {
            return write!(connection, "HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n");
        }
        let all = object.content.len();
        let range = request.range.clone().filter(|_| fault != Some(Fault::NoRanges));
        let mut head = match &range {
            Some(range) if range.start >= all => {
                return write!(connection, "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\n\r\n");
            }
            Some(range) => format!("HTTP/1.1 206 Partial Content\r\n{}", content_range(range, all, fault)),
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
        };
        let range = range.map_or(0..all, |range| range.start..range.end.min(all));
        for (name, value) in [("etag", &object.etag), ("last-modified", &object.modified)] {
            value.iter().for_each(|value| write!(head, "{name}: {value}\r\n").unwrap());
        }
        let sent = match fault {
            Some(Fault::Short(len)) => range.len().min(len),
            _ => range.len(),
        };
        if fault == Some(Fault::NoLength) {
            write!(connection, "{head}connection: close\r\n\r\n")?;
            connection.write_all(&object.content[range])?;
            return connection.shutdown(Shutdown::Both);
        }
        write!(connection, "{head}content-length: {sent}\r\n\r\n")?;
        if request.method == "HEAD" {
            return Ok(());
        }
        send(connection, &object.content[range], fault)
    }

    /// True if an object was put into the bucket of `path`, or `path` is that of a file without a bucket.
    fn has_bucket(&self, path: &str, is_of_bucket: bool) -> bool {
        let path = decoded(path)[1..].to_owned() + if is_of_bucket { "/" } else { "" };
        bucket_of(&path).is_none_or(|bucket| self.state().buckets.contains(bucket))
    }

    /// The answer of S3 to a request for the objects of a bucket.
    fn list(&self, path: &str, query: &str) -> String {
        let parameter = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.clone().find(|(key, _)| *key == name).map(|(_, value)| decoded(value)).unwrap_or_default()
        };
        let (bucket, prefix, delimiter) = (&decoded(path)[1..], parameter("prefix"), parameter("delimiter"));
        let mut answer = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
        let mut folders = BTreeSet::new();
        for (path, object) in &self.state().objects {
            let key = path.strip_prefix(bucket.trim_end_matches('/')).and_then(|key| key.strip_prefix('/'));
            let Some(rest) = key.and_then(|key| key.strip_prefix(&prefix)) else { continue };
            if let Some((folder, _)) = rest.split_once(&delimiter).filter(|_| !delimiter.is_empty()) {
                folders.insert(format!("{prefix}{folder}{delimiter}"));
            } else {
                let (etag, len) = (object.etag.as_deref().unwrap_or_default(), object.content.len());
                write!(
                    answer,
                    "<Contents><Key>{prefix}{rest}</Key><LastModified>2026-11-03T10:00:00.000Z</LastModified>\
                     <ETag>{etag}</ETag><Size>{len}</Size></Contents>"
                )
                .unwrap();
            }
        }
        for folder in folders {
            write!(answer, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>").unwrap();
        }
        answer + "</ListBucketResult>"
    }
}

fn send(mut connection: &TcpStream, content: &[u8], fault: Option<Fault>) -> std::io::Result<()> {
    match fault {
        Some(Fault::Cut(len)) => {
            connection.write_all(&content[..len.min(content.len())])?;
            connection.shutdown(Shutdown::Both)
        }
        Some(Fault::Short(len)) => connection.write_all(&content[..len.min(content.len())]),
        Some(Fault::StallAfter(len)) => {
            connection.write_all(&content[..len.min(content.len())])?;
            wait_for_the_end(connection)
        }
        Some(Fault::Slow(parts)) => {
            content.chunks(content.len().div_ceil(parts).max(1)).try_for_each(|part| {
                thread::sleep(Duration::from_millis(10));
                connection.write_all(part)
            })
        }
        _ => connection.write_all(content),
    }
}

/// Waits until the client closes the connection.
fn wait_for_the_end(mut connection: &TcpStream) -> std::io::Result<()> {
    connection.read_to_end(&mut Vec::new()).map(drop)
}

/// The header `Content-Range` of the answer to a request for `range` of `all` bytes.
fn content_range(range: &Range<usize>, all: usize, fault: Option<Fault>) -> String {
    let value = match fault {
        Some(Fault::Range(value)) => value.map(str::to_owned),
        _ => Some(format!("bytes {}-{}/{all}", range.start, range.end.min(all) - 1)),
    };
    value.map_or_else(String::new, |value| format!("content-range: {value}\r\n"))
}

/// The first folder of `path`, which is the bucket if the server is one of objects.
fn bucket_of(path: &str) -> Option<&str> {
    path.split_once('/').map(|(bucket, _)| bucket)
}

/// Replaces escapes such as `%20`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| std::str::from_utf8(&tail[..2]).unwrap());
        bytes.push(escaped.map_or(*first, |digits| u8::from_str_radix(digits, 16).unwrap()));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap()
}
