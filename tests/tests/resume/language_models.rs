//! Mixed, packed and bucketed datasets of tokens: the same with any number of workers, with workers that are
//! killed, and when an epoch is resumed.

use loader_core::{
    ConcatDataset, Error, IterableDataset, MixDataset,
    collate::{Batch, Ragged},
    mix::{Exhausted, Mix, MixRule},
    pack::{LongDocuments, PackMethod, Packing},
    prelude::{BatchDigest, DataLoader, Dataset, SampleContext},
    sampler::{LengthBatches, MixSampler, TokenBudget},
};
use loader_tests::{Watchdog, digest, everywhere, processes::try_signal};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::resumed::saved;

/// Documents of 0 to 36 tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Documents {
    first: usize,
    len: usize,
}

impl Documents {
    fn tokens(&self, index: usize) -> usize {
        (self.first + index) * 7 % 37
    }
}

impl Dataset for Documents {
    type Sample = Ragged<Vec<i64>>;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        Ok(Ragged::new(vec![(self.first + index) as i64; self.tokens(index)]))
    }
}

const MEMBERS: [Documents; 2] = [Documents { first: 1, len: 60 }, Documents { first: 1001, len: 25 }];

/// Checks the loader that `build` makes for a number of workers, and returns the batches of epoch 1.
fn check<B: Batch>(build: impl Fn(usize) -> Result<DataLoader<B>, Error>) -> Vec<B> {
    let _watchdog = Watchdog::start();
    let batches = everywhere(&build);
    assert!(batches.len() >= 8, "{} batches show little", batches.len());
    let expected = digest(build(0).unwrap().epoch(1).unwrap()).unwrap();
    for (before, after) in [(0, 3), (3, 1), (3, 0)] {
        let (mut digest, mut first) = (BatchDigest::new(), build(before).unwrap().epoch(1).unwrap());
        for number in 0..4 {
            if let Some(&pid) = first.worker_pids().get(number) {
                try_signal(pid, Signal::SIGKILL);
            }
            let batch = first.next().unwrap().unwrap();
            digest.add(&first.last_batch().expect("a batch was returned").indices, &batch);
        }
        let state = saved(&first.state());
        first.by_ref().for_each(drop);
        assert!(before == 0 || first.report().restarts > 0, "no worker was replaced");
        let mut rest = build(after).unwrap().resume(&state).unwrap();
        while let Some(batch) = rest.next() {
            digest.add(&rest.last_batch().expect("a batch was returned").indices, &batch.unwrap());
        }
        assert_eq!((digest.order(), digest.content()), expected, "resumed with {after} instead of {before}");
    }
    batches
}

#[test]
fn mixed_map_style_datasets() {
    for rule in [MixRule::Even, MixRule::ErrorDriven, MixRule::Random] {
        check(|workers| {
            let mix = Mix::new([0.7, 0.3]).unwrap().rule(rule).exhausted(Exhausted::Repeat);
            let sampler =
                MixSampler::of(&MEMBERS, mix.change(1, 9, [0.2, 0.8]).unwrap()).unwrap().shuffle(true);
            let loader = DataLoader::builder(ConcatDataset::new(MEMBERS).unwrap()).sampler(sampler);
            loader.batch_size(4).seed(3).num_workers(workers).build()
        });
    }
}

#[test]
fn mixed_streams() {
    for (rule, exhausted) in [
        (MixRule::Even, Exhausted::Repeat),
        (MixRule::ErrorDriven, Exhausted::Drop),
        (MixRule::Random, Exhausted::Drop),
    ] {
        check(|workers| {
            let mix = Mix::new([3.0, 1.0]).unwrap().rule(rule).exhausted(exhausted);
            let streams = MEMBERS.map(|member| member.into_stream().shuffle(true).shuffle_buffer(5));
            let mixed = MixDataset::new(streams, mix).unwrap();
            DataLoader::stream(mixed).shards(3).snapshots().batch_size(4).seed(3).num_workers(workers).build()
        });
    }
}

#[test]
fn packed_documents() {
    let [documents, _] = MEMBERS;
    let tokens: usize = (0..documents.len).map(|index| documents.tokens(index)).sum();
    for method in [PackMethod::Concatenate, PackMethod::FirstFit, PackMethod::BestFit] {
        let batches = check(|workers| {
            let packing = Packing::new(16).method(method).look_ahead(7).shuffle(true);
            let packing = packing.long_documents(LongDocuments::Split);
            let packed = documents.clone().into_stream().shuffle(true).pack(packing).unwrap();
            DataLoader::stream(packed)
                .shards(3)
                .snapshots()
                .batch_size(2)
                .seed(3)
                .num_workers(workers)
                .build()
        });
        assert_eq!((batches[0].tokens.shape(), batches[0].segments.shape()), (&[2, 16][..], &[2, 16][..]));
        assert_eq!(
            batches.iter().map(|batch| batch.fill()).sum::<loader_core::pack::Fill>().tokens,
            tokens as u64
        );
    }
}

#[test]
fn streams_of_batches_of_similar_length() {
    let [documents, _] = MEMBERS;
    let batches = check(|workers| {
        let stream = documents.clone().into_stream().shuffle(true);
        let batches = stream.length_batches(100, 7, |document| document.row().len()).unwrap();
        DataLoader::stream(batches).shards(3).snapshots().unbatched().seed(3).num_workers(workers).build()
    });
    assert!(batches.iter().all(|batch| batch.values.as_slice().len() <= 100));
    let lengths = batches.iter().flat_map(|batch| batch.lengths.as_slice().to_vec());
    let tokens: usize = (0..documents.len).map(|index| documents.tokens(index)).sum();
    assert_eq!(lengths.sum::<u64>(), tokens as u64, "each document once");
}

#[test]
fn batches_of_similar_length() {
    let [documents, _] = MEMBERS;
    let batches = check(|workers| {
        let lens = (0..documents.len).map(|index| documents.tokens(index));
        let sampler = LengthBatches::new(lens, TokenBudget::new(100).max_samples(8)).unwrap();
        DataLoader::builder(documents.clone()).batch_sampler(sampler).seed(3).num_workers(workers).build()
    });
    assert!(batches.iter().all(|batch| batch.values.as_slice().len() <= 100));
}
