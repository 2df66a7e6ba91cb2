//! A group of processes that average vectors over TCP: each sends its vector to rank 0, which sends back the mean.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

/// How long a rank waits for another one. A rank that ends closes its connection, which the others notice at
/// once; this is for one that is stopped, or whose machine is gone.
const TIMEOUT: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Group {
    /// In rank 0, the connection to each other rank, in their order; in another rank, that to rank 0.
    peers: Vec<(usize, TcpStream)>,
    rank: usize,
}

impl Group {
    /// Waits until all ranks are connected. Rank 0 listens at `address`.
    pub(crate) fn join(rank: usize, world_size: usize, address: &str) -> anyhow::Result<Self> {
        let deadline = Instant::now() + TIMEOUT;
        let mut peers = Vec::new();
        if rank == 0 {
            let listener = TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
            listener.set_nonblocking(true)?;
            while peers.len() + 1 < world_size {
                let accepted = until(deadline, || listener.accept());
                let (stream, _) = accepted.context("another rank has not connected")?;
                let mut stream = prepared(stream)?;
                let mut number = [0; 4];
                stream.read_exact(&mut number)?;
                peers.push((u32::from_le_bytes(number) as usize, stream));
            }
            peers.sort_by_key(|(rank, _)| *rank);
            ensure!(peers.iter().map(|(rank, _)| *rank).eq(1..world_size), "a rank has connected twice");
        } else {
            let connected = until(deadline, || TcpStream::connect(address));
            let mut stream =
                prepared(connected.with_context(|| format!("connecting to rank 0 at {address}"))?)?;
            stream.write_all(&u32::try_from(rank)?.to_le_bytes())?;
            peers.push((0, stream));
        }
        Ok(Self { peers, rank })
    }

    /// Replaces `values` by their mean over all ranks, which is the same in all of them.
    pub(crate) fn average(&mut self, values: &mut [f32]) -> anyhow::Result<()> {
        let world_size = self.peers.len() as f32 + 1.0;
        let mut bytes = vec![0; size_of_val(values)];
        let is_root = self.rank == 0;
        if !is_root {
            self.send(values)?;
        }
        for (rank, stream) in &mut self.peers {
            stream.read_exact(&mut bytes).with_context(|| format!("rank {rank} has sent no gradients"))?;
            for (value, received) in values.iter_mut().zip(bytes.as_chunks().0) {
                let received = f32::from_le_bytes(*received);
                *value = if is_root { *value + received } else { received };
            }
        }
        if is_root {
            values.iter_mut().for_each(|value| *value /= world_size);
            self.send(values)?;
        }
        Ok(())
    }

    fn send(&mut self, values: &[f32]) -> anyhow::Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut sent = self.peers.iter_mut().map(|(rank, stream)| {
            stream.write_all(&bytes).with_context(|| format!("rank {rank} takes no gradients"))
        });
        sent.try_for_each(|sent| sent)
    }
}

/// Calls `open` until it succeeds, or the deadline has passed.
fn until<T>(deadline: Instant, mut open: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match open() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused)
                    && Instant::now() < deadline =>
            {
                thread::sleep(BETWEEN_TRIES);
            }
            result => return result,
        }
    }
}

fn prepared(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
