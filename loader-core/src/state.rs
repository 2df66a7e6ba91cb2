//! Where the user stands, written down.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::Error,
    fetch::{Cut, ShardPlace, Snapshot},
    options::Order,
    sampler::Epoch,
};

/// Version of the format. Version 1 had no fingerprints, and a random order that took memory.
const VERSION: u32 = 2;

/// Max length of a fingerprint, in bytes; the end of a longer one is hashed.
const MOST_FINGERPRINT: usize = 200;

/// The part of a state that is the number of shards, in errors.
pub(crate) const SHARDS: &str = "number of shards (see `shards`)";

/// The position in a loader: which epoch, and which of its batches were returned. Any serde format can hold
/// it. It is small: some numbers and the fingerprints of dataset and sampler, at most 200 bytes each; with
/// `in_order` off a number for each batch that came before its turn; for an iterable dataset some numbers for
/// each shard, and its snapshot. It does not depend on the workers, so their number may change (with an
/// iterable dataset only if the number of shards is set with `shards`).
///
/// Taken with [`Iter::state`](crate::Iter::state) or [`DataLoader::state`](crate::DataLoader::state), and given to
/// [`DataLoader::resume`](crate::DataLoader::resume) of a loader built alike. Taken when the last batch of an epoch was returned, before
/// or after the end was, it stands for the beginning of the next epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    seed: u64,
    order: Order,
    samples: Option<u64>,
    #[serde(default)]
    pipeline: Pipeline,
    epoch: u64,
    /// In the epoch so far: they count towards `max_bad_samples`.
    #[serde(default)]
    bad_samples: u64,
    place: Place,
}

/// What of the epoch was returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// Nothing.
    Start,
    Batches(BatchesPlace),
    Shards(ShardsPlace),
}

/// Of a map-style dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchesPlace {
    /// The first batch that was not returned.
    pub(crate) next: u64,
    /// Batches behind it that were (with `in_order` off).
    pub(crate) ahead: Vec<u64>,
    /// Batches in the epoch.
    pub(crate) batches: u64,
    /// Of the epoch's order.
    pub(crate) fingerprint: u64,
}

/// Of an iterable dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardsPlace {
    /// Batches returned.
    pub(crate) batches: u64,
    /// The shard whose turn it is.
    pub(crate) turn: usize,
    #[serde(with = "shards")]
    pub(crate) shards: Vec<ShardPlace>,
}

/// The fingerprints of what decides the order of the samples, which two loaders can compare: the kinds of
/// stages and their parameters. They hold no encoded data and no type names, because those change from one
/// build to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pipeline {
    /// The dataset's fingerprint.
    dataset: String,
    batching: Batching,
}

/// What decides which samples a batch consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Batching {
    /// The batch sampler's fingerprint, of a map-style dataset.
    Sampler(String),
    /// Of an iterable dataset.
    Shards(Cut),
}

impl Pipeline {
    pub(crate) fn new(dataset: String, batching: Batching) -> Self {
        let batching = match batching {
            Batching::Sampler(fingerprint) => Batching::Sampler(shorten(fingerprint)),
            shards @ Batching::Shards(_) => shards,
        };
        Self { dataset: shorten(dataset), batching }
    }

    fn kind(&self) -> &'static str {
        match self.batching {
            Batching::Sampler(_) => "map-style",
            Batching::Shards(_) => "iterable",
        }
    }
}

/// For states of version 1, which have no pipeline and are refused.
impl Default for Batching {
    fn default() -> Self {
        Self::Sampler(String::new())
    }
}

/// A fingerprint of at most [`MOST_FINGERPRINT`] bytes.
fn shorten(mut fingerprint: String) -> String {
    if fingerprint.len() > MOST_FINGERPRINT {
        let hash = format!("...#{:016x}", xxh3_64(fingerprint.as_bytes()));
        let room = MOST_FINGERPRINT - hash.len();
        let end = (0..=room).rev().find(|&end| fingerprint.is_char_boundary(end)).unwrap_or(0);
        fingerprint.truncate(end);
        fingerprint.push_str(&hash);
    }
    fingerprint
}

/// What a state must agree on with its loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) seed: u64,
    pub(crate) order: Order,
    pub(crate) samples: Option<usize>,
    pub(crate) pipeline: Arc<Pipeline>,
}

impl Origin {
    /// Epoch `number` of the loader.
    pub(crate) fn epoch(&self, number: u64) -> Epoch {
        Epoch::new(self.seed, number).order(self.order)
    }
}

impl State {
    /// The beginning of an epoch.
    pub(crate) fn start(origin: &Origin, epoch: u64) -> Self {
        Self::new(origin, epoch, 0, Place::Start)
    }

    /// A place in an epoch that has brought `bad_samples` so far.
    pub(crate) fn new(origin: &Origin, epoch: u64, bad_samples: u64, place: Place) -> Self {
        let Origin { seed, order, samples, ref pipeline } = *origin;
        let samples = samples.map(|samples| samples as u64);
        let pipeline = Pipeline::clone(pipeline);
        Self { version: VERSION, seed, order, samples, pipeline, epoch, bad_samples, place }
    }

    /// The epoch that it stands in.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Batches of the epoch that were returned, failed ones included.
    pub fn batches(&self) -> u64 {
        match &self.place {
            Place::Start => 0,
            Place::Batches(place) => place.next.saturating_add(place.ahead.len() as u64),
            Place::Shards(place) => place.batches,
        }
    }

    /// Samples of the epoch that were skipped or replaced so far.
    pub(crate) fn bad_samples(&self) -> u64 {
        self.bad_samples
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Checks that it is of a loader like `origin`.
    pub(crate) fn check(&self, origin: &Origin) -> Result<(), Error> {
        let (theirs, ours) = (&self.pipeline, &*origin.pipeline);
        must_agree("version of the format", self.version, VERSION)?;
        must_agree("kind of dataset", theirs.kind(), ours.kind())?;
        must_agree("seed", self.seed, origin.seed)?;
        must_agree("order", self.order, origin.order)?;
        let samples =
            |samples: Option<u64>| samples.map_or("unknown".to_owned(), |samples| samples.to_string());
        let our_samples = origin.samples.map(|samples| samples as u64);
        must_agree("number of samples", samples(self.samples), samples(our_samples))?;
        must_agree("dataset", &theirs.dataset, &ours.dataset)?;
        match (&theirs.batching, &ours.batching) {
            (Batching::Sampler(theirs), Batching::Sampler(ours)) => must_agree("sampler", theirs, ours),
            (Batching::Shards(theirs), Batching::Shards(ours)) => must_agree_on_cut(theirs, ours),
            // The kinds agree.
            _ => Ok(()),
        }
    }
}

fn must_agree_on_cut(theirs: &Cut, ours: &Cut) -> Result<(), Error> {
    must_agree("batch_size", theirs.batch_size, ours.batch_size)?;
    must_agree("drop_last", theirs.drop_last, ours.drop_last)?;
    must_agree(SHARDS, theirs.shards, ours.shards)?;
    must_agree("first shard (see `distributed`)", theirs.first_shard, ours.first_shard)?;
    let part = "number of shards of all processes (see `distributed`)";
    must_agree(part, theirs.all_shards, ours.all_shards)
}

/// The error for a state that says `theirs` where the loader says `ours`.
pub(crate) fn must_agree<T: PartialEq + fmt::Display>(
    part: &'static str,
    theirs: T,
    ours: T,
) -> Result<(), Error> {
    if theirs == ours {
        return Ok(());
    }
    Err(Error::StateMismatch { part, state: theirs.to_string(), loader: ours.to_string() })
}

/// Snapshots are bytes, which text formats would write as long lists of numbers: in hexadecimal here.
mod shards {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Written {
        position: u64,
        snapshot: Option<(u64, String)>,
        ended: bool,
    }

    pub(super) fn serialize<S: Serializer>(shards: &[ShardPlace], serializer: S) -> Result<S::Ok, S::Error> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = shards.iter().map(|place| Written {
            position: place.position,
            snapshot: place.snapshot.as_ref().map(|snapshot| (snapshot.position, hex(&snapshot.bytes))),
            ended: place.ended,
        });
        written.collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<ShardPlace>, D::Error> {
        let written = Vec::<Written>::deserialize(deserializer)?;
        let read = |Written { position, snapshot, ended }: Written| {
            let snapshot = match snapshot {
                None => None,
                Some((at, _)) if at > position => return None,
                Some((at, hex)) => Some(Snapshot { position: at, bytes: from_hex(&hex)? }),
            };
            Some(ShardPlace { position, snapshot, ended })
        };
        let places = written.into_iter().map(read).collect::<Option<_>>();
        places.ok_or_else(|| D::Error::custom("a shard's snapshot is not one"))
    }

    fn from_hex(text: &str) -> Option<Vec<u8>> {
        let pairs = text.as_bytes().chunks(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let snapshot = Snapshot { position: 3, bytes: vec![0, 255, 16] };
        let shards =
            vec![ShardPlace { position: 5, snapshot: Some(snapshot), ended: false }, ShardPlace::default()];
        let place = Place::Shards(ShardsPlace { batches: 2, turn: 1, shards });
        State::new(&origin(), 3, 0, place)
    }

    fn origin() -> Origin {
        let cut = Cut { shards: 2, first_shard: 0, all_shards: 2, batch_size: 4, drop_last: false };
        let pipeline = Arc::new(Pipeline::new("stream".to_owned(), Batching::Shards(cut)));
        Origin { seed: 7, order: Order::Native, samples: None, pipeline }
    }

    #[test]
    fn it_survives_text_and_bytes() {
        let json = serde_json::to_string(&state()).unwrap();
        assert!(json.contains(r#""snapshot":[3,"00ff10"]"#), "{json}");
        assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state());
        let bytes = loader_ipc::codec::encode(&state()).unwrap();
        assert_eq!(loader_ipc::codec::decode::<State>(&bytes).unwrap(), state());
    }

    #[test]
    fn what_is_not_a_state_is_refused() {
        let json = serde_json::to_string(&state()).unwrap();
        for broken in [json.replace("00ff10", "00ff1x"), json.replace("[3,", "[9,")] {
            assert!(serde_json::from_str::<State>(&broken).is_err());
        }
        let other = State { version: 1, ..state() };
        assert_eq!(
            other.check(&origin()).unwrap_err().to_string(),
            "the state does not fit the loader: its version of the format is 1, the loader's is 2"
        );
        let json = serde_json::to_value(other).unwrap();
        let without: serde_json::Map<_, _> =
            json.as_object().unwrap().clone().into_iter().filter(|(key, _)| key != "pipeline").collect();
        let old: State = serde_json::from_value(without.into()).unwrap();
        assert!(old.check(&origin()).unwrap_err().to_string().contains("version of the format"));
    }

    #[test]
    fn long_fingerprints_are_cut_and_still_differ() {
        let long = |last: char| shorten("é".repeat(300) + &last.to_string());
        assert!(long('a').len() <= MOST_FINGERPRINT && long('a') != long('b'));
        assert_eq!(shorten("stream".to_owned()), "stream");
    }
}
