//! The state of a loader: the user's position in an epoch, which a loader can resume from.

mod epoch_end;
mod merge;

use std::{fmt, sync::Arc};

use loader_ipc::{
    codec::{self, CodecError},
    frame::StreamPosition,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    data::{
        fetch::{ShardLayout, ShardPosition, Snapshot},
        fingerprint::shorten,
        random::Epoch,
        sample_digest::SampleDigest,
        sampler::Taken,
    },
    error::Error,
    options::Order,
};

pub(crate) use epoch_end::EpochEnd;
pub use merge::MergeError;

/// Version of the format. docs/releasing.md says how it changes.
const VERSION: u32 = 1;

/// Names of parts of a state in errors.
pub(crate) const SHARDS: &str = "number of shards (see `shards`)";
pub(crate) const BATCHES: &str = "number of batches";

/// The user's position in a loader: the epoch, and which of its batches were returned.
///
/// [`Iter::state`](crate::Iter::state) and [`DataLoader::state`](crate::DataLoader::state) take it.
/// [`DataLoader::resume`](crate::DataLoader::resume) of a loader that was built with the same dataset and
/// options continues from it. A state stays in its epoch until `next` has returned `None`: a run that resumes from a state
/// that was taken after the last batch of an epoch gets no more batches of it.
///
/// A state can be written with any serde format. A format that does not write the names of fields, such as bincode,
/// reads only the states of a version of this library whose states have the same fields. A state consists of some
/// numbers (among them rank and world size), the fingerprints of the dataset and the sampler, at most 200 bytes each,
/// and with the option [`digest`](crate::Builder::digest) the digest of the epoch so far. With `in_order(false)`, it
/// also has a number for each batch that was returned before its turn. For an iterable dataset, it also has some
/// numbers and the snapshot of each shard.
///
/// A written state has a hash of its content. Reading a state that was damaged or edited since is an error of the
/// format. The hash detects mistakes, not forgery.
///
/// `resume` works with another number of workers. For an iterable dataset, this requires the option
/// [`shards`](crate::Builder::shards). To resume with another number of ranks, [merge](State::merge) the
/// states of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")] // The trait's implementations below add the hash, and check it.
pub struct State {
    version: u32,
    seed: u64,
    order: Order,
    samples: Option<u64>,
    share: Share,
    /// True if it is the state of all ranks. Its share then has rank 0.
    is_merged: bool,
    pipeline: Arc<Pipeline>,
    epoch: u64,
    /// Number of times that `next` has returned a batch of the epoch, or the error of one.
    steps: u64,
    /// Number of bad samples in the epoch so far, which count towards `max_bad_samples`.
    bad_samples: u64,
    /// Digest of the epoch so far, with the option `digest`.
    digest: Option<SampleDigest>,
    /// Digest of the epoch before, if the state was taken at its end or soon after. `State::merge` needs it if
    /// other ranks are still in that epoch.
    digest_before: Option<SampleDigest>,
    /// How the epoch before ended, until this epoch has returned its first batch. `State::merge` needs it if other
    /// ranks are still in that epoch.
    end_before: EpochEnd,
    /// The merged state from which the run was resumed, if it was.
    resumed_from: Option<ResumedFrom>,
    #[serde(rename = "place")]
    position: Position,
    /// Hash of the other fields, while the state is written or read; otherwise `None`.
    hash: Option<String>,
}

/// Names a merged state. Ranks that were resumed from different merged states count their positions of its epoch
/// in different remainders of it, so their states cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumedFrom {
    pub(crate) epoch: u64,
    /// Hash of the position of all ranks.
    hash: u64,
}

/// Which batches of the epoch were returned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Position {
    /// No batch was returned.
    #[default]
    Start,
    /// Batches of a map-style dataset.
    Batches(BatchesPosition),
    /// No batch of a map-style dataset was returned of what these earlier runs have left. In a merged state.
    Remaining(Vec<Taken>),
    /// Batches of an iterable dataset. In a merged state, all ranks' shards.
    Shards(ShardsPosition),
}

/// Which batches of a map-style dataset were returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchesPosition {
    /// Number of the first batch that was not returned.
    pub(crate) next: u64,
    /// Numbers of the later batches that were returned, with `in_order(false)`.
    pub(crate) ahead: Vec<u64>,
    /// Number of batches in the epoch, as the sampler's `len` says.
    pub(crate) batches: u64,
    /// True if it was known that there is no batch `next`. A host with samplers that have states of their own then asks them
    /// for no batch.
    pub(crate) is_end: bool,
    /// Fingerprint of the epoch's order; see [`Plan`](crate::engine::plan::Plan).
    pub(crate) fingerprint: u64,
    /// What earlier runs with other numbers of ranks have returned of the epoch. The batches are those of a
    /// share of the rest. Empty in an epoch that was not resumed from a merged state.
    pub(crate) taken: Vec<Taken>,
}

impl BatchesPosition {
    /// Checks that the batches that were returned before their turn are in order, and come after the first one that was
    /// not returned.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // There is no upper bound: a sampler may give more batches than its `len` says, and the loader warns then.
        let mut before = self.next;
        for &batch in &self.ahead {
            if batch <= before {
                return Err(Error::StateMismatch {
                    part: "batch that was returned before its turn",
                    state: batch.to_string(),
                    loader: format!("a number above {before}"),
                });
            }
            before = batch;
        }
        Ok(())
    }
}

/// Which batches of an iterable dataset were returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardsPosition {
    /// Number of batches returned.
    pub(crate) batches: u64,
    /// Number of the shard whose turn is next.
    pub(crate) turn: usize,
    #[serde(with = "shards")]
    pub(crate) shards: Vec<ShardPosition>,
}

/// The share of the samples that this process loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) policy: SharePolicy,
}

/// What happens with samples that ranks cannot share equally, or that do not fill a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SharePolicy {
    /// Other samples are repeated.
    #[default]
    Repeat,
    /// They are left out.
    DropLast,
}

impl Share {
    fn drops_last(&self) -> bool {
        self.policy == SharePolicy::DropLast
    }
}

impl Default for Share {
    /// All samples.
    fn default() -> Self {
        Self { rank: 0, world_size: 1, policy: SharePolicy::default() }
    }
}

/// Fingerprints of everything that determines the order of the samples, to compare two loaders. A fingerprint
/// consists of the kinds of the stages and their parameters. It contains neither encoded data nor type names,
/// because these change from one build to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pipeline {
    /// The dataset's fingerprint.
    dataset: String,
    batching: Batching,
    /// For a map-style dataset whose order all ranks share.
    shared: Option<SharedOrder>,
}

/// What all ranks have in common that share the order of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedOrder {
    /// Fingerprint of the order of all ranks.
    pub(crate) order: String,
    pub(crate) batch_size: u64,
}

/// What determines the samples of each batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Batching {
    /// For a map-style dataset: the fingerprint of the batch sampler.
    Sampler(String),
    /// For an iterable dataset.
    Shards(ShardLayout),
}

impl Pipeline {
    pub(crate) fn new(dataset: String, batching: Batching, shared: Option<SharedOrder>) -> Self {
        let batching = match batching {
            Batching::Sampler(fingerprint) => Batching::Sampler(shorten(fingerprint)),
            shards @ Batching::Shards(_) => shards,
        };
        Self { dataset: shorten(dataset), batching, shared }
    }

    /// Returns the fingerprint of the order that all ranks share, or else that of the sampler.
    fn epoch_order(&self) -> &str {
        match (&self.shared, &self.batching) {
            (Some(shared), _) => &shared.order,
            (None, Batching::Sampler(sampler)) => sampler,
            (None, Batching::Shards(_)) => "",
        }
    }

    fn kind(&self) -> &'static str {
        match self.batching {
            Batching::Sampler(_) => "map-style",
            Batching::Shards(_) => "iterable",
        }
    }
}

/// The properties of a loader that must equal those of a state from which it resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) seed: u64,
    pub(crate) order: Order,
    pub(crate) samples: Option<usize>,
    pub(crate) share: Share,
    pub(crate) pipeline: Arc<Pipeline>,
}

impl Origin {
    /// True for an iterable dataset.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.pipeline.batching, Batching::Shards(_))
    }

    /// Returns epoch `number` of the loader.
    pub(crate) fn epoch(&self, number: u64) -> Epoch {
        Epoch::new(self.seed, number).order(self.order)
    }
}

/// For a host with datasets and samplers that have states of their own.
#[doc(hidden)]
impl State {
    /// True if no batch of the epoch was returned.
    pub fn is_at_start(&self) -> bool {
        self.position == Position::Start
    }

    /// True if no sample of an iterable dataset was returned. The state then has no snapshot.
    pub fn is_before_first_sample(&self) -> bool {
        match &self.position {
            Position::Start => true,
            Position::Shards(position) => position.shards.iter().all(|shard| shard.position.items == 0),
            _ => false,
        }
    }

    /// Returns the number of the first batch of a map-style dataset that was not returned.
    pub fn first_unreturned_batch(&self) -> u64 {
        self.of_batches().map_or(0, |batches| batches.next)
    }

    /// True if the engine knew that the sampler has no further batch.
    pub fn is_at_end(&self) -> bool {
        self.of_batches().is_some_and(|batches| batches.is_end)
    }

    fn of_batches(&self) -> Option<&BatchesPosition> {
        match &self.position {
            Position::Batches(batches) => Some(batches),
            _ => None,
        }
    }

    /// Returns the last snapshot of each shard of an iterable dataset.
    ///
    /// # Errors
    /// Returns an error if a snapshot is not of the type `T`.
    pub fn snapshots<T: DeserializeOwned>(&self) -> Result<Vec<Option<T>>, CodecError> {
        let Position::Shards(position) = &self.position else { return Ok(Vec::new()) };
        let snapshots = position.shards.iter().map(|shard| shard.snapshot.as_ref());
        snapshots
            .map(|snapshot| snapshot.map(|snapshot| codec::decode(&snapshot.bytes)).transpose())
            .collect()
    }
}

impl State {
    /// The state at the beginning of an epoch.
    pub(crate) fn start(origin: &Origin, epoch: u64) -> Self {
        Self::new(origin, epoch, 0, None, Position::Start)
    }

    /// The same state, with the digest of the epoch before.
    pub(crate) fn with_digest_before(self, digest_before: Option<SampleDigest>) -> Self {
        Self { digest_before, ..self }
    }

    /// The same state, after an epoch that ended so.
    pub(crate) fn with_end_before(self, end_before: EpochEnd) -> Self {
        Self { end_before, ..self }
    }

    /// The same state, of a run that was resumed from this merged state.
    pub(crate) fn with_resumed_from(self, resumed_from: Option<ResumedFrom>) -> Self {
        Self { resumed_from, ..self }
    }

    pub(crate) fn resumed_from(&self) -> Option<ResumedFrom> {
        self.resumed_from
    }

    /// The same state, after so many batches of the epoch.
    pub(crate) fn with_steps(self, steps: u64) -> Self {
        Self { steps, ..self }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn digest_before(&self) -> Option<SampleDigest> {
        self.digest_before
    }

    pub(crate) fn end_before(&self) -> &EpochEnd {
        &self.end_before
    }

    /// The state at a position of an epoch that has had `bad_samples` bad samples and this digest so far.
    pub(crate) fn new(
        origin: &Origin,
        epoch: u64,
        bad_samples: u64,
        digest: Option<SampleDigest>,
        position: Position,
    ) -> Self {
        let Origin { seed, order, samples, share, ref pipeline } = *origin;
        let samples = samples.map(|samples| samples as u64);
        let pipeline = Arc::clone(pipeline);
        Self {
            version: VERSION,
            seed,
            order,
            samples,
            share,
            is_merged: false,
            pipeline,
            epoch,
            steps: 0,
            bad_samples,
            digest,
            digest_before: None,
            end_before: EpochEnd::default(),
            resumed_from: None,
            position,
            hash: None,
        }
    }

    /// Returns the hash of all fields but `hash`, which must be `None`.
    fn content_hash(&self) -> String {
        let bytes = codec::encode(&Content(self)).expect("a state consists of numbers and texts");
        format!("{:016x}", xxh3_64(&bytes))
    }

    /// Returns the number of ranks of the run that saved the state, or from whose states it was
    /// [merged](Self::merge); 1 for a process without ranks.
    pub fn world_size(&self) -> usize {
        self.share.world_size
    }

    /// True if the state was [merged](Self::merge) from the states of all ranks, so that any number of ranks can
    /// resume from it.
    pub fn is_merged(&self) -> bool {
        self.is_merged
    }

    /// Returns the number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of batches of the epoch that were returned, including batches that failed. In an
    /// epoch that was resumed from a [merged](Self::merge) state, this rank's batches since then; 0 in the
    /// merged state.
    pub fn batches(&self) -> u64 {
        match &self.position {
            Position::Start | Position::Remaining(_) => 0,
            Position::Batches(position) => position.next.saturating_add(position.ahead.len() as u64),
            Position::Shards(position) => position.batches,
        }
    }

    /// Number of samples of the epoch that were skipped or replaced so far.
    pub(crate) fn bad_samples(&self) -> u64 {
        self.bad_samples
    }

    /// Returns the digest of the samples of the epoch that were returned; `None` without the option
    /// [`digest`](crate::Builder::digest).
    pub fn digest(&self) -> Option<SampleDigest> {
        self.digest
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Checks that the state agrees with a loader.
    pub(crate) fn check(&self, origin: &Origin) -> Result<(), Error> {
        self.check_run(origin)?;
        must_agree("world_size", self.share.world_size, origin.share.world_size)?;
        must_agree("rank", self.share.rank, origin.share.rank)?;
        match (&self.pipeline.batching, &origin.pipeline.batching) {
            (Batching::Sampler(theirs), Batching::Sampler(ours)) => must_agree("sampler", theirs, ours),
            (Batching::Shards(theirs), Batching::Shards(ours)) => must_agree_on_layout(theirs, ours),
            // This cannot happen, because the datasets have the same kind.
            _ => Ok(()),
        }
    }

    /// Checks what must agree whatever share of the samples the loader has.
    fn check_run(&self, origin: &Origin) -> Result<(), Error> {
        let (theirs, ours) = (&*self.pipeline, &*origin.pipeline);
        if self.version != VERSION {
            return Err(Error::StateVersion { version: self.version, supported: VERSION });
        }
        must_agree("kind of dataset", theirs.kind(), ours.kind())?;
        must_agree("seed", self.seed, origin.seed)?;
        must_agree("order", self.order, origin.order)?;
        let our_samples = origin.samples.map(|samples| samples as u64);
        let (their_number, our_number) = (known(self.samples), known(our_samples));
        if theirs.dataset != ours.dataset && their_number != our_number {
            // Other files often have another number of samples, which alone does not tell what has changed.
            let with_samples = |dataset, number: &str| format!("{dataset} (number of samples: {number})");
            let theirs = with_samples(&theirs.dataset, &their_number);
            must_agree("dataset", theirs, with_samples(&ours.dataset, &our_number))?;
        }
        must_agree("number of samples", their_number, our_number)?;
        must_agree("drop_last", self.share.drops_last(), origin.share.drops_last())?;
        must_agree("dataset", &theirs.dataset, &ours.dataset)
    }
}

/// A state that is encoded as it is.
struct Content<'a>(&'a State);

impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        State::serialize(self.0, serializer)
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(&Self { hash: Some(self.content_hash()), ..self.clone() }, serializer)
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut state = Self::deserialize(deserializer)?;
        let hash = state.hash.take();
        // `check` names the version of a state of another one.
        if state.version == VERSION && hash != Some(state.content_hash()) {
            return Err(D::Error::custom(
                "the state was damaged or edited after it was written, because its hash is not that of its content; \
                 use an undamaged copy of it or an earlier state, or begin the epoch again",
            ));
        }
        Ok(state)
    }
}

fn known(samples: Option<u64>) -> String {
    samples.map_or("unknown".to_owned(), |samples| samples.to_string())
}

fn must_agree_on_layout(theirs: &ShardLayout, ours: &ShardLayout) -> Result<(), Error> {
    must_agree("batch_size", theirs.batch_size, ours.batch_size)?;
    // Rank, world size and this number decide the rest of the layout.
    must_agree(SHARDS, theirs.shards, ours.shards)
}

/// Returns an error if `theirs`, a value of the state, differs from `ours`, the loader's value.
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

/// The serde format of shards. It writes the bytes of a snapshot as a hexadecimal string, because text
/// formats would write the bytes as a long list of numbers.
mod shards {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Written {
        position: u64,
        errors: u64,
        snapshot: Option<(u64, String)>,
        /// Hash of the errors before the snapshot.
        snapshot_errors: u64,
        ended: bool,
    }

    pub(super) fn serialize<S: Serializer>(
        shards: &[ShardPosition],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = shards.iter().map(|shard| Written {
            position: shard.position.items,
            errors: shard.position.errors,
            snapshot: shard.snapshot.as_ref().map(|snapshot| (snapshot.position.items, hex(&snapshot.bytes))),
            snapshot_errors: shard.start().errors,
            ended: shard.ended,
        });
        written.collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<ShardPosition>, D::Error> {
        let written = Vec::<Written>::deserialize(deserializer)?;
        let read = |Written { position, errors, snapshot, snapshot_errors, ended }: Written| {
            let snapshot = match snapshot {
                None => None,
                Some((at, _)) if at > position => return None,
                Some((at, hex)) => {
                    let position = StreamPosition { items: at, errors: snapshot_errors };
                    Some(Snapshot { position, bytes: from_hex(&hex)?.into() })
                }
            };
            let position = StreamPosition { items: position, errors };
            Some(ShardPosition { position, snapshot, ended })
        };
        let shards = written.into_iter().map(read).collect::<Option<_>>();
        shards.ok_or_else(|| D::Error::custom("a shard's snapshot is invalid"))
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
        let snapshot =
            Snapshot { position: StreamPosition { items: 3, errors: 8 }, bytes: [0, 255, 16].into() };
        let shards = vec![
            ShardPosition {
                position: StreamPosition { items: 5, errors: 9 },
                snapshot: Some(snapshot),
                ended: false,
            },
            ShardPosition::default(),
        ];
        let position = Position::Shards(ShardsPosition { batches: 2, turn: 1, shards });
        State::new(&origin(), 3, 0, Some(SampleDigest::default()), position)
    }

    fn origin() -> Origin {
        let layout =
            ShardLayout { shards: 2, first_shard: 0, all_shards: 2, batch_size: 4, drop_last: false };
        let pipeline = Arc::new(Pipeline::new("stream".to_owned(), Batching::Shards(layout), None));
        Origin { seed: 7, order: Order::Native, samples: None, share: Share::default(), pipeline }
    }

    // PyTorch: T04, T05, T14
    #[test]
    fn a_state_survives_text_and_binary_formats() {
        let json = serde_json::to_string(&state()).unwrap();
        assert!(json.contains(r#""snapshot":[3,"00ff10"]"#), "{json}");
        assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state());
        let bytes = codec::encode(&state()).unwrap();
        assert_eq!(codec::decode::<State>(&bytes).unwrap(), state());
        let Position::Shards(position) = state().position else { panic!("a stream has shards") };
        let ended = state().with_end_before(EpochEnd::after_steps(4, position));
        assert_eq!(serde_json::from_str::<State>(&serde_json::to_string(&ended).unwrap()).unwrap(), ended);
    }

    /// Damages each byte of a state in each format.
    #[test]
    fn a_damaged_state_is_never_used() {
        // The damage may have met the version, or a name or a value that means nothing.
        let is_harmless = |read: State| read == state() || read.check(&origin()).is_err();
        let json = serde_json::to_string(&state()).unwrap();
        for at in json.char_indices().filter(|(_, char)| char.is_ascii_hexdigit()).map(|(at, _)| at) {
            for digit in ["1", "7"].into_iter().filter(|digit| json[at..=at] != **digit) {
                let damaged = [&json[..at], digit, &json[at + 1..]].concat();
                assert!(serde_json::from_str(&damaged).map_or(true, is_harmless), "{damaged}");
            }
        }
        let bytes = codec::encode(&state()).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(codec::decode(&damaged).map_or(true, is_harmless), "byte {at}");
        }
        let edited =
            serde_json::from_str::<State>(&json.replace("\"batches\":2", "\"batches\":3")).unwrap_err();
        assert_eq!(
            edited.to_string(),
            "the state was damaged or edited after it was written, because its hash is not that of its content; use an \
             undamaged copy of it or an earlier state, or begin the epoch again"
        );
    }

    #[test]
    fn an_invalid_state_is_refused() {
        let json = serde_json::to_string(&state()).unwrap();
        for broken in [json.replace("00ff10", "00ff1x"), json.replace("[3,", "[9,")] {
            assert!(serde_json::from_str::<State>(&broken).is_err());
        }
    }

    #[test]
    fn a_state_of_another_version_is_refused_by_its_number() {
        let mut later = serde_json::to_value(State { version: 2, ..state() }).unwrap();
        later.as_object_mut().unwrap().insert("added".to_owned(), true.into());
        let error = serde_json::from_value::<State>(later).unwrap().check(&origin()).unwrap_err();
        assert!(matches!(error, Error::StateVersion { version: 2, supported: 1 }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "this state is of version 2, but this library reads version 1; resume it with the version of this library that \
             wrote it, or start again with `iter()`"
        );
    }

    #[test]
    fn a_state_of_another_share_is_refused_by_name() {
        let with = |share| Origin { share, ..origin() };
        let share = Share { rank: 1, world_size: 3, policy: SharePolicy::Repeat };
        let state = State::start(&with(share), 0);
        state.check(&with(share)).unwrap();
        let others = [
            (Share { world_size: 2, ..share }, "its world_size is 3, the loader's is 2"),
            (Share { rank: 2, ..share }, "its rank is 1, the loader's is 2"),
            (
                Share { policy: SharePolicy::DropLast, ..share },
                "its drop_last is false, the loader's is true",
            ),
        ];
        for (other, expected) in others {
            let message = state.check(&with(other)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_state_of_another_seed_is_refused_by_name() {
        let message = state().check(&Origin { seed: 8, ..origin() }).unwrap_err().to_string();
        assert!(message.contains("its seed is 7, the loader's is 8"), "{message}");
    }
}
