//! Serves the statistics of a loader over HTTP, in the text format of Prometheus.
//!
//! Alternative considered: the package metrics-exporter-prometheus. Rejected because it brings an HTTP server with
//! an async runtime, for one short text.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use loader_ipc::profile::Phase;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::{
    data::collate::fill::Fill,
    error::Error,
    report::{
        load_times::Percentiles,
        stats::{LoaderStats, SharedStats, WorkerStats},
    },
};

/// Maximum time for a client to send its request and to receive the answer.
const CLIENT_DEADLINE: Duration = Duration::from_secs(1);
/// Maximum time between two checks whether the server was stopped. A stop ends the wait at once.
const POLL_TIME: Duration = Duration::from_secs(1);
/// Maximum number of clients at the same time. One more takes the place of the oldest.
const MAX_CLIENTS: usize = 64;
/// Maximum length of a request in bytes.
const MAX_REQUEST: usize = 8 << 10;

/// A thread that answers requests. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    /// Shutting it down ends the thread.
    stop: UnixStream,
    /// Process id of the process that has the thread. A forked child does not.
    owner: u32,
}

impl MetricsServer {
    /// Starts to serve `stats` at `address`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the address cannot be used.
    pub(crate) fn start(address: SocketAddr, stats: Arc<SharedStats>) -> Result<Self, Error> {
        let refused = |error: io::Error| {
            let problem = format!(
                "the loader cannot listen at {address}: {error}; choose a free port of this machine (another loader of this program may use it)"
            );
            Error::invalid_option("metrics", problem)
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (stop, stopped) = UnixStream::pair().map_err(refused)?;
        let thread = thread::Builder::new().name("loader-metrics".into());
        let thread = thread
            .spawn(move || serve(&listener, &stopped, |request| answer(request, &stats)))
            .map_err(refused)?;
        Ok(Self { thread: Some(thread), address, stop, owner: std::process::id() })
    }
}

impl MetricsServer {
    /// Returns the address, with the port that the system chose if the port was 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // A forked child does not have the thread. It must not detach it.
            std::mem::forget(self.thread.take());
            return;
        }
        // Not only dropped: a forked child of the program has a copy of it.
        drop(self.stop.shutdown(Shutdown::Both));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A client, its request as far as it has come, and its answer as far as it is not sent.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
    /// Number of bytes of the answer that are sent.
    sent: usize,
    deadline: Instant,
}

impl Client {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let deadline = Instant::now() + CLIENT_DEADLINE;
        Ok(Self { stream, request: Vec::new(), answer: None, sent: 0, deadline })
    }

    /// Returns what must happen before the client can be served further.
    fn awaited(&self) -> PollFlags {
        if self.answer.is_none() { PollFlags::POLLIN } else { PollFlags::POLLOUT }
    }

    /// Reads and writes once, if that is possible without waiting. Returns true if the client has its answer.
    fn serve(&mut self, answer: &impl Fn(&[u8]) -> Vec<u8>) -> io::Result<bool> {
        if self.answer.is_none() {
            let mut part = [0; 1024];
            let read = self.stream.read(&mut part)?;
            self.request.extend_from_slice(&part[..read]);
            if self.request.ends_with(b"\r\n\r\n") {
                self.answer = Some(answer(&self.request));
            } else if read == 0 || self.request.len() > MAX_REQUEST {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let Some(answer) = &self.answer else { return Ok(false) };
        self.sent += self.stream.write(&answer[self.sent..])?;
        Ok(self.sent == answer.len())
    }
}

/// Answers requests until `stopped` is shut down. No client waits for another one. `answer` gets the head of a request,
/// and returns the response.
fn serve(listener: &TcpListener, stopped: &UnixStream, answer: impl Fn(&[u8]) -> Vec<u8>) {
    // The client whose deadline comes first is at the front.
    let mut clients: VecDeque<Client> = VecDeque::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| client.deadline > now);
        let left = clients.front().map_or(POLL_TIME, |client| client.deadline - now);
        let mut fds = vec![
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.awaited())));
        // Rounded up, so that the deadline is over after the wait.
        let milliseconds = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        match poll(&mut fds, PollTimeout::from(milliseconds)) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            // Memory is short. Wait, so that this thread does not use a whole CPU.
            Err(_) => {
                thread::sleep(CLIENT_DEADLINE / 10);
                continue;
            }
        }
        let ready: Vec<bool> =
            fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
        if ready[1] {
            return;
        }
        let mut is_ready = ready[2..].iter();
        clients.retain_mut(|client| {
            let is_ready = is_ready.next().is_some_and(|&ready| ready);
            // An error ends only this client's connection.
            !is_ready
                || match client.serve(&answer) {
                    Ok(is_answered) => !is_answered,
                    Err(error) => {
                        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
                    }
                }
        });
        if !ready[0] {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if clients.len() == MAX_CLIENTS {
                    // The one that has had the most time.
                    clients.pop_front();
                }
                clients.extend(Client::new(stream));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {
                }
                // Too many open files, for example.
                _ => thread::sleep(CLIENT_DEADLINE / 10),
            },
        }
    }
}

/// Returns the answer to the head of a request.
fn answer(request: &[u8], stats: &SharedStats) -> Vec<u8> {
    let (status, text) =
        match request.strip_prefix(b"GET ").map(|rest| rest.split(|&byte| byte == b' ').next()) {
            Some(Some(b"/metrics" | b"/")) => ("200 OK", metrics(&stats.read())),
            Some(_) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
            None => ("405 Method Not Allowed", "use GET\n".to_owned()),
        };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    answer.into_bytes()
}

/// Formats statistics as Prometheus reads them.
fn metrics(stats: &LoaderStats) -> String {
    let mut text = Text::default();
    text.counter("epochs", "Epochs begun.", stats.epochs as f64);
    text.counter("batches", "Batches returned.", stats.batches as f64);
    text.counter("samples", "Samples returned.", stats.samples as f64);
    let help = "Bytes of shared memory that the returned batches took.";
    text.counter("batch_bytes", help, stats.bytes as f64);
    if let Some(Fill { tokens, capacity }) = stats.fill {
        text.counter("tokens", "Tokens of the returned batches without padding.", tokens as f64);
        let help = "Tokens of the returned batches with padding.";
        text.counter("tokens_with_padding", help, capacity as f64);
    }
    text.counter("errors", "Errors returned.", stats.errors as f64);
    let help = "Time that the program has waited for batches.";
    text.counter("wait_seconds", help, stats.waiting.as_secs_f64());
    text.counter("restarts", "Workers that were replaced.", stats.restarts as f64);
    text.counter("bad_samples", "Samples that were skipped or replaced.", stats.bad_samples as f64);
    let help = "Batches that workers have loaded and the program has not received.";
    text.metric("ready_batches", "gauge", help, [(String::new(), stats.ready_batches as f64)]);
    let help = "Shared memory allocated for batches.";
    text.metric("shared_memory_bytes", "gauge", help, [(String::new(), stats.shared_memory_bytes as f64)]);
    text.workers(stats);
    text.0
}

/// The text of an answer.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Writes what is known of each worker of the newest iterator.
    fn workers(&mut self, stats: &LoaderStats) {
        let of_each = |value: fn(&WorkerStats) -> f64| {
            let workers = stats.workers.iter().enumerate();
            workers.map(move |(number, worker)| (format!("{{worker=\"{number}\"}}"), value(worker)))
        };
        let help = "Time that a worker has spent on batches.";
        self.metric(
            "worker_busy_seconds_total",
            "counter",
            help,
            of_each(|worker| worker.busy.as_secs_f64()),
        );
        let help = "Batches that a worker has loaded.";
        self.metric("worker_batches_total", "counter", help, of_each(|worker| worker.batches as f64));
        let help = "Time that a worker has been in its current state on its current sample.";
        self.metric("worker_state_seconds", "gauge", help, of_each(|worker| worker.age.as_secs_f64()));
        let help = "Batches whose phases and samples were measured.";
        self.counter("profiled_batches", help, stats.times.profiled_batches as f64);
        let phases = stats.workers.iter().enumerate().flat_map(|(number, worker)| {
            Phase::ALL.into_iter().map(move |phase| {
                let labels = format!("{{worker=\"{number}\",phase=\"{}\"}}", phase.name());
                (labels, worker.phases.of(phase).as_secs_f64())
            })
        });
        let help = "Time that a worker has spent in a phase of loading, measured in profiled batches.";
        self.metric("worker_phase_seconds_total", "counter", help, phases);
        self.summary("batch_load_seconds", "Time in which a worker loads a batch.", stats.times.batch);
        let help = "Time in which the dataset loads a sample, measured in profiled batches.";
        self.summary("sample_load_seconds", help, stats.times.sample);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.metric(&format!("{name}_total"), "counter", help, [(String::new(), value)]);
    }

    /// Writes percentiles.
    fn summary(&mut self, name: &str, help: &str, of: Option<Percentiles>) {
        let Some(Percentiles { count, p50, p95, p99 }) = of else { return };
        let quantiles = [("0.5", p50), ("0.95", p95), ("0.99", p99)];
        let quantiles =
            quantiles.map(|(quantile, time)| (format!("{{quantile=\"{quantile}\"}}"), time.as_secs_f64()));
        let count = ("_count".to_owned(), count as f64);
        self.metric(name, "summary", help, quantiles.into_iter().chain([count]));
    }

    /// Writes a metric with its values, each with what follows the name.
    fn metric(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.0, "# HELP loader_{name} {help}\n# TYPE loader_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "loader_{name}{labels} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::batch_info::BatchInfo;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn statistics_are_served_until_the_server_is_dropped() {
        let stats = Arc::new(SharedStats::default());
        drop(stats.epoch_begins());
        let asked = Instant::now();
        stats.next_begins(asked);
        let batch =
            BatchInfo { bytes: 512, ..BatchInfo::of_indices(0, (0..64).collect(), 0, Some(0), Vec::new()) };
        stats.next_ends(asked, asked + Duration::from_millis(1500), Some(Some(&batch)));
        stats.add_fill(Fill { tokens: 30, capacity: 40 });
        stats.add_fill(Fill { tokens: 9, capacity: 10 });
        let any = "127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::start(any, Arc::clone(&stats)).unwrap();
        let address = server.address();
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let lines = [
            "batches_total 1",
            "samples_total 64",
            "batch_bytes_total 512",
            "tokens_total 39",
            "tokens_with_padding_total 50",
            "wait_seconds_total 1.5",
        ];
        for line in lines.map(|line| format!("loader_{line}")) {
            assert!(answer.lines().any(|found| found == line), "no {line} in {answer}");
        }
        assert!(ask(address, "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        // Clients that say nothing do not hold the server, and may be more than it serves.
        let begun = Instant::now();
        let mut silent: Vec<_> =
            (0..MAX_CLIENTS + 10).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").contains("loader_epochs_total 1"));
        let took = begun.elapsed();
        assert!(took < 10 * CLIENT_DEADLINE, "the answer took {took:?}");
        // The server closes their connections.
        for client in &mut silent {
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        drop(server);
        assert_eq!(Arc::strong_count(&stats), 1, "the thread has ended");
    }

    #[test]
    fn a_client_that_reads_slowly_does_not_get_more_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(&listener, &stopped, |_| vec![b'x'; 256 << 20]));
        let mut slow = TcpStream::connect(address).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let begun = Instant::now();
        slow.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // Each read makes room in the socket, so each write of the server succeeds.
        let (mut part, mut received) = (vec![0; 1 << 20], 0);
        while let Ok(read @ 1..) = slow.read(&mut part) {
            received += read;
            thread::sleep(Duration::from_millis(100));
        }
        let took = begun.elapsed();
        assert!(received < 256 << 20, "the whole answer was sent in {took:?}");
        assert!(took >= CLIENT_DEADLINE && took < 10 * CLIENT_DEADLINE, "the client had {took:?}");
        drop(stop);
        server.join().unwrap();
    }

    #[test]
    fn an_address_in_use_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = MetricsServer::start(address, Arc::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("the loader cannot listen at {address}: ")), "{text}");
    }
}
