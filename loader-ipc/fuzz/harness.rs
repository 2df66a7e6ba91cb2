//! Reads arbitrary bytes as the messages of the other process. The fuzz targets use this, and
//! `tests/corpus.rs`, which replays their corpus. A target fails if it panics, if a false length makes it
//! allocate too much memory, or if it does not end.
#![allow(dead_code)] // each target uses one function

use std::{collections::BTreeMap, num::NonZeroUsize, os::fd::AsFd, sync::Arc, time::Instant};

use loader_ipc::{
    SlotMemory,
    arena::{Arena, Encoded},
    attach,
    buffer::{ALIGNMENT, Buffer},
    codec,
    frame::{AfterFailure, BadSampleRecord, Command, Event, Failure, Indices, Lease, Stage, Task},
    handshake::{Bootstrap, Notice},
    lent,
    lifeline::Lifeline,
    memory::{self, SealedMemory},
    schema::Schema,
};
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Decodes the frame of an event, as main does. Encoding the event again must give the same bytes.
pub(crate) fn report(bytes: &[u8]) {
    if let Ok(event) = codec::decode::<Event>(bytes) {
        assert_eq!(codec::encode(&event).unwrap(), bytes);
        if let Event::Failed { failure, .. } | Event::NotReady { failure } = event {
            assert!(codec::encode(&failure.cut_to_frame()).unwrap().len() <= loader_ipc::queue::MAX_FRAME);
        }
    }
}

/// Decodes the frame of a command, as a worker does. Encoding the command again must give the same bytes.
pub(crate) fn command(bytes: &[u8]) {
    if let Ok(command) = codec::decode::<Option<Command>>(bytes) {
        assert_eq!(codec::encode(&command).unwrap(), bytes);
    }
}

/// Receives a whole message of a lifeline, with its header; and decodes the body of each kind of message.
pub(crate) fn lifeline(bytes: &[u8]) {
    if (1..=64 * 1024).contains(&bytes.len()) {
        let (ours, theirs) = Lifeline::pair().unwrap();
        send(&theirs, bytes, SendFlags::DONTWAIT).unwrap();
        drop(ours.receive::<Notice>(Instant::now()));
    }
    drop(codec::decode::<Notice>(bytes));
    drop(codec::decode::<Bootstrap>(bytes));
    // The types in a worker's answer.
    drop(codec::decode::<Result<String, String>>(bytes));
}

const SLOT: usize = 4096;

/// Decodes a batch from a slot of one page: two numbers are the range of its encoding, the rest is the slot's
/// content.
pub(crate) fn batch(bytes: &[u8]) {
    let (numbers, content) = bytes
        .as_chunks::<8>()
        .0
        .split_at_checked(2)
        .map_or((&[][..], bytes), |(numbers, _)| (numbers, &bytes[16..]));
    let number = |position: usize| numbers.get(position).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let encoded = Encoded { start: number(0), len: number(1) };
    let slot = slot();
    let mut loan = slot.lend(()).unwrap();
    loan.put(0, &content[..content.len().min(SLOT)]).unwrap();
    drop(loan);
    if let Ok(batch) = lent::decode::<Batch>(slot.lend(()).unwrap(), encoded) {
        // Tensors are in the slot, aligned, and share no byte with each other.
        let all: Vec<_> = batch.tensors.iter().chain(batch.by_name.values()).chain(&batch.alone).collect();
        for (position, tensor) in all.iter().enumerate() {
            let bytes = tensor.0.as_bytes();
            assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(bytes.len() <= SLOT);
            for other in
                all[..position].iter().filter(|other| !other.0.as_bytes().is_empty() && !bytes.is_empty())
            {
                let (one, two) = (bytes.as_ptr_range(), other.0.as_bytes().as_ptr_range());
                assert!(Arc::ptr_eq(&tensor.0, &other.0) || one.end <= two.start || two.end <= one.start);
            }
        }
        let sum: u64 = all.iter().flat_map(|tensor| tensor.0.as_bytes()).map(|&byte| u64::from(byte)).sum();
        std::hint::black_box(sum);
    }
    assert!(!slot.is_lent(), "the slot must be free again after every decoding");
}

/// Decodes a value with attachments: sealed memory of 256 bytes under number 0, and empty memory under number
/// 1.
pub(crate) fn attached(bytes: &[u8]) {
    let memories = [vec![7; 256], Vec::new()].map(|bytes| Arc::new(SealedMemory::new(&bytes).unwrap()));
    if let Ok(pieces) = attach::decode::<Vec<Piece>>(bytes, Vec::from(memories).into()) {
        assert!(pieces.iter().all(|piece| piece.0.as_bytes().iter().all(|&byte| byte == 7)));
    }
    assert!(!attach::is_decoding());
}

/// Returns the messages of well-behaved processes, with which the corpus begins, by name of the target.
pub(crate) fn seeds() -> BTreeMap<&'static str, Vec<Vec<u8>>> {
    let lease = Lease { slot: 3, generation: 2, len: 65536 };
    let failure = Failure {
        stage: Stage::Fetch,
        index: Some(7),
        chain: vec!["no such file".into(), "photo.jpg".into()],
        panicked: false,
        backtrace: Some("0: main".into()),
    };
    let encoded = Encoded { start: 64, len: 100 };
    let bad =
        vec![BadSampleRecord { position: 2, index: 40, replaced_by: Some(41), reason: "rotten".into() }];
    let schema = Some(Box::new(Schema::of(&encoded)));
    let events = [
        Event::Ready,
        Event::NotReady { failure: failure.clone() },
        Event::Done { task: 1, lease, encoded, held: true, position: 9.into(), bad: bad.clone(), schema },
        Event::NeedSlot { task: 1, lease, needed: 1 << 20 },
        Event::Failed { task: 2, lease, failure, held: false, position: 0.into(), after: AfterFailure::Ends },
        Event::Skipped { task: 3, lease, held: false },
        Event::Unused { task: 3, lease },
        Event::Bye,
        Event::Withdrawn { task: 4 },
        Event::Exhausted { task: 5, lease, held: true },
        Event::Resumed { epoch: 6 },
        Event::AllSamplesBad { task: 7, lease, held: false, position: 0.into(), bad },
        Event::Oversized { resident: 1 << 30 },
    ];
    let task = |indices| {
        let (forget, known_bad) = (vec![1, 2], vec![40]);
        Task { epoch: 1, number: 2, lease, indices, forget, claim: 3, known_bad }
    };
    let next = Indices::NextOf { shard: 1, position: 2.into(), start: 1.into(), snapshot: Some(9) };
    let commands = [
        None,
        Some(Command::Task(task(Indices::Range { start: 0, len: 64 }))),
        Some(Command::Task(task(Indices::List(vec![5, 3, 1])))),
        Some(Command::Task(task(Indices::InSlot { len: 1000 }))),
        Some(Command::Task(task(next))),
        Some(Command::Offer { task: 2, lease }),
        Some(Command::Resume { epoch: 2 }),
    ];
    let notices = [
        Notice::Slots { first: 1, count: 8, slot_len: 4096 },
        Notice::Grant { task: 1, lease: Ok(lease) },
        Notice::Grant { task: 1, lease: Err("no room".into()) },
    ];
    let encode =
        |bytes: Result<Vec<u8>, _>| -> Vec<u8> { bytes.map_err(|error: codec::CodecError| error).unwrap() };
    let mut messages: Vec<_> = notices.iter().map(|notice| encode(codec::encode(notice))).collect();
    let header = [b"LOADER\x00\x01".as_slice(), &loader_ipc::lifeline::PROTOCOL.to_le_bytes()].concat();
    messages.extend(messages.clone().into_iter().map(|body| [header.clone(), body].concat()));
    BTreeMap::from([
        ("report", events.iter().map(|event| encode(codec::encode(event))).collect()),
        ("command", commands.iter().map(|command| encode(codec::encode(command))).collect()),
        ("lifeline", messages),
        ("batch", vec![honest_batch()]),
        ("attached", vec![honest_attached()]),
    ])
}

fn slot() -> Arc<SlotMemory> {
    let len = NonZeroUsize::new(SLOT).unwrap();
    SlotMemory::map(memory::reserve(len).unwrap().as_fd(), len).unwrap()
}

fn honest_batch() -> Vec<u8> {
    let slot = slot();
    let mut arena = Arena::in_slot(slot.lend(()).unwrap());
    let tensor = |len, byte| {
        let mut buffer = Buffer::zeroed(len).unwrap();
        buffer.as_bytes_mut().fill(byte);
        Tensor(Arc::new(buffer))
    };
    let encoded = {
        let batch = arena.within(|| {
            let shared = tensor(64, 1);
            Batch {
                tensors: vec![tensor(100, 2), shared.clone(), tensor(0, 0)],
                names: vec!["one".into(), String::new()],
                by_name: BTreeMap::from([("shared".into(), shared)]),
                alone: Some(tensor(300, 3)),
                bytes: vec![1, 2, 3],
            }
        });
        arena.encode(&batch).unwrap()
    };
    drop(arena);
    let mut loan = slot.lend(()).unwrap();
    let end = usize::try_from(encoded.start + encoded.len).unwrap();
    let content = loan.take(0..end).unwrap();
    [&encoded.start.to_le_bytes(), &encoded.len.to_le_bytes(), content.as_bytes()].concat()
}

fn honest_attached() -> Vec<u8> {
    let buffer = |len| Piece(Arc::new(Buffer::copy_of(&vec![7; len])));
    let pieces = vec![buffer(10), buffer(100), buffer(0)];
    attach::encode(&pieces).unwrap().0
}

/// A batch with every kind of content that a slot may hold.
#[derive(Serialize, Deserialize)]
struct Batch {
    tensors: Vec<Tensor>,
    names: Vec<String>,
    by_name: BTreeMap<String, Tensor>,
    alone: Option<Tensor>,
    bytes: Vec<u8>,
}

/// Bytes that are encoded as their offset in the slot, as those of a tensor are.
#[derive(Clone)]
struct Tensor(Arc<Buffer>);

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let len = self.0.as_bytes().len();
        let offset =
            loader_ipc::arena::ensure_in_slot(&self.0, len).expect("the batch is encoded into a slot");
        (offset, len as u64).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (offset, len) = Deserialize::deserialize(deserializer)?;
        let buffer = lent::buffer_at(offset, len).expect("the batch is decoded from a slot");
        buffer.map(Tensor).map_err(D::Error::custom)
    }
}

/// Bytes that are encoded as an attached piece.
struct Piece(Arc<Buffer>);

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let len = self.0.as_bytes().len();
        let piece = attach::attach_piece(&self.0, len).expect("the value is encoded with attachments");
        (piece.map_err(serde::ser::Error::custom)?, len as u64).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Piece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (piece, len): (_, u64) = Deserialize::deserialize(deserializer)?;
        let len = usize::try_from(len).map_err(D::Error::custom)?;
        let buffer = attach::piece(piece, len).ok_or_else(|| D::Error::custom("no such piece"))?;
        Ok(Self(Arc::new(buffer)))
    }
}
