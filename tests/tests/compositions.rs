//! Datasets made of others, samples without batches, and every kind of sample: the same with any number of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, ensure};
use loader_core::{
    Convert, Error,
    collate::{Batch, Keep, List, Padded, Padding, Ragged, Side},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Fault as FaultOf, Faulty, Noise},
    digest,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

loader_worker::init_before_main!();

type NoiseSample = (u64, [f32; 3], String);

/// All batches, which must have the same digest with 0, 1 and 3 workers.
fn everywhere<B: Batch>(build: impl Fn(usize) -> Result<DataLoader<B>, Error>) -> Vec<B> {
    let digests = [0, 1, 3].map(|workers| digest(build(workers).unwrap().epoch(1).unwrap()).unwrap());
    assert_eq!((digests[0], digests[0]), (digests[1], digests[2]));
    build(3).unwrap().epoch(1).unwrap().map(Result::unwrap).collect()
}

fn numbers(len: usize) -> Tensor<i64> {
    Tensor::from_vec((0..len as i64).collect(), [len]).unwrap()
}

fn noise(count: usize) -> Noise {
    Noise { count }
}

/// As `Noise`, and loaded many at once.
#[derive(Serialize, Deserialize)]
struct Many {
    count: usize,
    fault: Fault,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Fault {
    None,
    /// One sample too many.
    Surplus,
    Error,
    Panic,
}

fn many(count: usize) -> Many {
    Many { count, fault: Fault::None }
}

impl Dataset for Many {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, _index: usize, _cx: &mut Context) -> anyhow::Result<NoiseSample> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<NoiseSample>> {
        let load = |&index| {
            cx.set_index(index);
            noise(self.count).get(index, cx)
        };
        let mut samples: Vec<_> = indices.iter().map(load).collect::<Result<_, _>>()?;
        // The second batch of the tests below.
        if indices.contains(&5) {
            match self.fault {
                Fault::None => {}
                Fault::Surplus => samples.push(samples[0].clone()),
                Fault::Error => return Err(anyhow::anyhow!("the disk is on fire").context("reading a block")),
                Fault::Panic => panic!("the block is odd"),
            }
        }
        Ok(samples)
    }
}

#[test]
fn tensors() {
    let _watchdog = Watchdog::start();
    let images = Tensor::from_vec((0..60).map(|pixel| pixel as f32).collect(), [10, 2, 3]).unwrap();
    let batches = everywhere(|workers| {
        let dataset = TensorDataset::new((images.clone(), numbers(10))).unwrap();
        DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(workers).build()
    });
    for (images, numbers) in batches {
        assert_eq!(
            (images.shape(), numbers.shape()),
            ([numbers.len(), 2, 3].as_slice(), [numbers.len()].as_slice())
        );
        assert!(images.is_shared_memory() && numbers.is_shared_memory());
        for (row, &number) in numbers.as_slice().iter().enumerate() {
            assert_eq!(images.row(row)[0], 6.0 * number as f32);
        }
    }
}

/// Device, inode and permissions of the mapping that has `address`.
fn mapping_of(address: usize) -> anyhow::Result<String> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let holds = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap_or_default().0.split_once('-').unwrap_or_default();
        let at = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (at(start)..at(end)).contains(&address)
    };
    let line = maps.lines().find(holds).context("memory is mapped")?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    Ok(format!("{} {} {} {}", &fields[1], fields[3], fields[4], fields.get(5).unwrap_or(&"")))
}

#[test]
fn all_workers_share_one_copy_of_the_tensors() {
    let _watchdog = Watchdog::start();
    let dataset = TensorDataset::new((Tensor::<u8>::zeros([24, 1 << 20]).unwrap(), numbers(24))).unwrap();
    let dataset = dataset.map(|(bytes, _), cx| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let worker = cx.worker().context("in a worker")?.id();
        Ok((worker, mapping_of(bytes.as_ptr().addr())?))
    });
    let loader = DataLoader::builder(dataset).num_workers(3).build().unwrap();
    let seen: BTreeMap<u64, String> = loader
        .iter()
        .unwrap()
        .map(|batch| batch.unwrap())
        .map(|(workers, mut mappings)| (workers.as_slice()[0], mappings.remove(0)))
        .collect();
    assert!(seen.len() > 1, "several workers load");
    let mappings: BTreeSet<_> = seen.values().collect();
    assert_eq!(mappings.len(), 1, "{seen:?}");
    let mapping = seen.values().next().unwrap();
    assert!(mapping.starts_with("r--s") && mapping.contains("memfd"), "shared and read-only: {mapping}");
}

#[test]
fn side_by_side() {
    let _watchdog = Watchdog::start();
    let batches = everywhere(|workers| {
        let inner = StackDataset::new((noise(20), many(20))).unwrap();
        let stack = StackDataset::new((TensorDataset::new(numbers(20)).unwrap(), inner)).unwrap();
        DataLoader::builder(stack).batch_size(6).shuffle(true).num_workers(workers).build()
    });
    for (numbers, (one, two)) in batches {
        assert!(numbers.as_slice().iter().map(|&number| number as u64).eq(one.0.as_slice().iter().copied()));
        assert_eq!(one, two, "each part draws as it would alone");
    }
    let maps = everywhere(|workers| {
        let parts = ["a", "b"].map(|key| (key.to_owned(), noise(10)));
        let stack = StackDataset::new(BTreeMap::from(parts)).unwrap();
        DataLoader::builder(stack).batch_size(10).num_workers(workers).build()
    });
    assert!(maps[0].keys().eq(["a", "b"]));
    assert_eq!(maps[0]["b"].0.as_slice()[9], 9);
}

/// Counts how often it is asked.
#[derive(Serialize, Deserialize)]
struct Tally;

static CALLS: AtomicUsize = AtomicUsize::new(0);

impl Dataset for Tally {
    type Sample = u64;

    fn len(&self) -> usize {
        8
    }

    fn get(&self, _index: usize, _cx: &mut Context) -> anyhow::Result<u64> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut Context) -> anyhow::Result<Vec<u64>> {
        CALLS.fetch_add(1, Ordering::SeqCst);
        Ok(indices.iter().map(|&index| index as u64).collect())
    }
}

#[test]
fn a_part_with_get_many_is_asked_once_per_batch() {
    let stack = StackDataset::new((noise(8), Tally)).unwrap().map(|sample, _| Ok(sample));
    let whole = stack.concat(
        StackDataset::new((noise(8), TensorDataset::new(numbers(8)).unwrap()))
            .unwrap()
            .map(|(noise, number), _| Ok((noise, number[0] as u64))),
    );
    let loader = DataLoader::builder(whole).batch_size(4).build().unwrap();
    let seen = loader.iter().unwrap().flat_map(|batch| batch.unwrap().1.as_slice().to_vec());
    assert!(seen.eq((0..8).chain(0..8)));
    assert_eq!(CALLS.load(Ordering::SeqCst), 2, "once for each of its batches");
}

#[test]
fn one_after_the_other() {
    let _watchdog = Watchdog::start();
    // Local indices start anew in each member, generators do not.
    let alone: BTreeMap<u64, Vec<f32>> = noise_by_index(noise(23));
    let list = |len| ConcatDataset::new([noise(len), noise(0), noise(2 * len)]).unwrap();
    assert_eq!(noise_by_index(list(5).concat(many(3)).concat(noise(5))), alone);
    assert_eq!(
        noise_by_index(many(3).concat(noise(10).concat(ConcatDataset::new([many(4), many(6)]).unwrap()))),
        alone
    );
}

/// What is drawn for each index, which does not depend on the number of workers.
fn noise_by_index<D: Dataset<Sample = NoiseSample>>(dataset: D) -> BTreeMap<u64, Vec<f32>> {
    let json = serde_json::to_string(&dataset).unwrap();
    let batches = everywhere(|workers| {
        let dataset: D = serde_json::from_str(&json).unwrap();
        let dataset = dataset.map(|(_, noise, _), cx| Ok((cx.index(), noise)));
        DataLoader::builder(dataset).batch_size(4).shuffle(true).seed(9).num_workers(workers).build()
    });
    let rows = |(indices, noise): (Tensor<u64>, Tensor<f32>)| {
        let row = |(row, &index): (usize, &u64)| (index, noise.row(row).to_vec());
        indices.as_slice().iter().enumerate().map(row).collect::<Vec<_>>()
    };
    batches.into_iter().flat_map(rows).collect()
}

#[test]
fn what_goes_wrong_in_get_many_loses_one_batch_and_names_its_samples() {
    let _watchdog = Watchdog::start();
    let cases = [
        (Fault::Surplus, vec!["get_many was asked for 4 samples and returned 5"]),
        (Fault::Error, vec!["reading a block", "the disk is on fire"]),
        (Fault::Panic, vec!["the block is odd"]),
    ];
    for (fault, causes) in cases {
        for workers in [0, 2] {
            let builder = DataLoader::builder(Many { count: 12, fault }).batch_size(4).num_workers(workers);
            let batches: Vec<_> = builder.build().unwrap().iter().unwrap().collect();
            assert!(batches[0].is_ok() && batches[2].is_ok() && batches.len() == 3);
            let error = batches[1].as_ref().unwrap_err();
            let Error::DatasetFailed { index: None, batch: 1, failure, .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!(failure.panicked, matches!(fault, Fault::Panic));
            assert_eq!(failure.chain[0], "get_many of samples [4, 5, 6, 7]");
            assert_eq!(failure.chain[1..], causes);
        }
    }
    let parts = (noise(12), Many { count: 12, fault: Fault::Surplus });
    let stack = StackDataset::new(parts).unwrap();
    let loader = DataLoader::builder(stack).batch_size(12).num_workers(1).build().unwrap();
    let error = loader.iter().unwrap().next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("dataset 1 of the stack: get_many was asked for 12 samples and returned 13"),
        "{error}"
    );
}

#[test]
fn a_part_without_get_many_names_the_sample() {
    let _watchdog = Watchdog::start();
    let faulty = || Faulty { count: 12, at: 5, fault: FaultOf::Error };
    for workers in [0, 2] {
        let stack = StackDataset::new((many(12), faulty())).unwrap();
        let builder = DataLoader::builder(
            noise(2).map(|_, _| Ok(vec![0])).concat(stack.map(|(_, sample), _| Ok(sample))),
        );
        let loader =
            builder.batch_size(7).num_workers(workers).collate(|samples| Ok(samples.len())).build().unwrap();
        let error = loader.iter().unwrap().nth(1).unwrap().unwrap_err();
        let Error::DatasetFailed { index: Some(7), failure, .. } = &error else { panic!("{error:?}") };
        let expected = [
            "the second dataset",
            "dataset 1 of the stack",
            "sample 7",
            "reading record 5",
            "the disk is on fire",
        ];
        assert_eq!(failure.chain, expected);
    }
}

#[test]
fn without_batches() {
    let _watchdog = Watchdog::start();
    let items = everywhere(|workers| {
        let loader = DataLoader::builder(noise(11)).unbatched().shuffle(true).num_workers(workers).build()?;
        assert_eq!(loader.len(), Some(11));
        Ok(loader)
    });
    assert!(items.iter().all(|(_, noise, _)| noise.shape() == [3] && noise.is_shared_memory()));
    let seen: BTreeSet<u64> = items.iter().map(|(number, ..)| *number).collect();
    assert!(seen.into_iter().eq(0..11));
    assert!(items.iter().all(|(number, _, name)| *name == format!("sample {number}")));

    let rows = everywhere(|workers| {
        let dataset =
            TensorDataset::new((numbers(5), Tensor::from_slice(&[1.5f32; 10], [5, 2]).unwrap())).unwrap();
        DataLoader::builder(dataset).unbatched().num_workers(workers).build()
    });
    assert!(rows.iter().map(|(number, _)| number.as_slice()[0]).eq(0..5), "in order");
    assert!(rows.iter().all(|(number, row)| number.rank() == 0 && row.shape() == [2]));

    let tensors = everywhere(|workers| {
        let builder = DataLoader::builder(many(7)).num_workers(workers);
        builder.convert(|(number, noise, _)| Ok((number, Tensor::from_slice(&noise, [1, 3])?))).build()
    });
    assert!(tensors.iter().all(|(_, noise)| noise.shape() == [1, 3] && noise.is_shared_memory()));
}

#[test]
fn a_conversion_that_fails_names_the_sample() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = DataLoader::builder(noise(4)).num_workers(workers).convert(|(number, ..)| {
            ensure!(number != 2, "two is one too many");
            Ok(number)
        });
        let items: Vec<_> = builder.build().unwrap().iter().unwrap().collect();
        assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 3);
        let error = items[2].as_ref().unwrap_err();
        let Error::CollateFailed { index: Some(2), batch: 2, .. } = error else { panic!("{error:?}") };
    }
}

#[test]
fn options_about_batches_exclude_having_none() {
    let batches = || loader_core::sampler::FixedBatches::new(SequentialSampler::new(10), 2, false);
    let builder = || DataLoader::builder(noise(10));
    let cases = [
        (builder().batch_size(2).unbatched().build().map(drop), "batch_size"),
        (builder().unbatched().batch_size(0).build().map(drop), ""),
        (builder().unbatched().drop_last(true).build().map(drop), "drop_last"),
        (builder().batch_sampler(batches()).unbatched().build().map(drop), "batch_sampler"),
        (builder().convert(|sample| Ok(sample.0)).batch_size(2).build().map(drop), "batch_size"),
    ];
    for (built, with) in cases {
        match built.unwrap_err() {
            Error::ConflictingOptions { first: "unbatched", second, .. } => assert_eq!(second, with),
            error => assert!(with.is_empty() && error.kind() == "InvalidOption", "{error:?}"),
        }
    }
    assert!(
        builder()
            .unbatched()
            .sampler(SequentialSampler::new(3))
            .build()
            .is_ok_and(|loader| loader.len() == Some(3))
    );
    let batched = builder().unbatched().batch_size(5).collate(|samples| Ok(samples.len())).build().unwrap();
    assert_eq!(batched.len(), Some(2), "the last word counts");
}

/// Sentences of as many words as the index says, and such.
#[derive(Serialize, Deserialize)]
struct Kinds;

type Kind = (Ragged<Vec<u32>>, List<(u8, &'static str)>, Option<Box<[f64]>>, Keep<Vec<u8>>, ());

impl Dataset for Kinds {
    type Sample = Kind;

    fn len(&self) -> usize {
        9
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Kind> {
        let word = cx.rng().random_range(1..9);
        let sentence = Ragged::new(vec![word; index]).pad_with(100);
        let list = List(vec![(index as u8, "one"), (index as u8 + 1, "two")]);
        Ok((sentence, list, Some(Box::from([index as f64])), Keep(vec![7; index]), ()))
    }
}

#[test]
fn every_kind_of_sample() {
    let _watchdog = Watchdog::start();
    let batches = everywhere(|workers| DataLoader::builder(Kinds).batch_size(3).num_workers(workers).build());
    let (sentences, list, option, kept, ()) = &batches[1];
    assert_eq!(
        (sentences.values.shape(), sentences.lengths.as_slice()),
        ([3, 5].as_slice(), [3, 4, 5].as_slice())
    );
    assert_eq!(sentences.values.row(0)[3..], [100, 100]);
    assert!(sentences.values.is_shared_memory() && sentences.lengths.is_shared_memory());
    assert_eq!((list.len(), list[1].0.as_slice(), list[1].1[2].as_str()), (2, [4, 5, 6].as_slice(), "two"));
    assert_eq!(option.as_ref().unwrap().shape(), [3, 1]);
    assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [3, 4, 5]);

    let items = everywhere(|workers| DataLoader::builder(Kinds).unbatched().num_workers(workers).build());
    assert_eq!(items[4].0.shape(), [4]);

    let padded: Vec<Padded<u32>> = everywhere(|workers| {
        let builder = DataLoader::builder(Kinds).batch_size(4).shuffle(true).num_workers(workers);
        let collate = |samples: Vec<Kind>| {
            let sentences: Vec<Tensor<u32>> =
                samples.into_iter().map(|sample| sample.0.convert()).collect::<Result<_, _>>()?;
            Ok(Padding::new(0).side(Side::Left).multiple_of(8).pad(&sentences)?)
        };
        builder.collate(collate).build()
    });
    assert!(padded.iter().all(|batch| batch.values.shape()[1] % 8 == 0 && batch.values.is_shared_memory()));
}

#[derive(Sample, Convert)]
#[sample(derive(Debug))]
struct Named {
    number: u64,
    inner: Inner,
}

#[derive(Sample, Convert)]
#[sample(derive(Debug))]
struct Inner(Vec<f32>, String);

#[test]
fn structs_keep_their_names_in_batches_and_alone() {
    let _watchdog = Watchdog::start();
    let named = |(number, noise, name): NoiseSample, _: &mut Context| {
        Ok(Named { number, inner: Inner(noise.to_vec(), name) })
    };
    let batches: Vec<NamedBatch> = everywhere(|workers| {
        DataLoader::builder(noise(8).map(named)).batch_size(4).num_workers(workers).build()
    });
    assert_eq!(
        (batches[1].number.as_slice(), batches[1].inner.0.shape()),
        ([4, 5, 6, 7].as_slice(), [4, 3].as_slice())
    );
    let items: Vec<NamedItem> = everywhere(|workers| {
        DataLoader::builder(noise(8).map(named)).unbatched().num_workers(workers).build()
    });
    assert_eq!(
        (items[7].number, items[7].inner.0.shape(), items[7].inner.1.as_str()),
        (7, [3].as_slice(), "sample 7")
    );
    assert_eq!(items[7].inner.0.as_slice(), batches[1].inner.0.row(3));
}

#[derive(Serialize, Deserialize)]
struct Misfit;

impl Dataset for Misfit {
    type Sample = (u8, List<Vec<u8>>);

    fn len(&self) -> usize {
        8
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Self::Sample> {
        let list = match index {
            2 => vec![vec![0; 3]; 3],
            5 => vec![vec![0; 3], vec![0; 4]],
            _ => vec![vec![0; 3]; 2],
        };
        Ok((0, List(list)))
    }
}

#[test]
fn what_does_not_fit_is_named_by_index_field_and_shapes() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let loader = DataLoader::builder(Misfit).batch_size(4).num_workers(workers).build().unwrap();
        let errors: Vec<Error> = loader.iter().unwrap().map(Result::unwrap_err).collect();
        let Error::CollateFailed { index: Some(2), .. } = &errors[0] else { panic!("{:?}", errors[0]) };
        assert!(
            errors[0].to_string().contains("field `1`: a list of 3 differs from the batch's first, of 2")
        );
        let Error::CollateFailed { index: Some(5), .. } = &errors[1] else { panic!("{:?}", errors[1]) };
        assert!(
            errors[1]
                .to_string()
                .contains("field `1.1`: shape [4] differs from the batch's first sample, [3]")
        );
    }
}

#[test]
fn a_function_around_parts_draws_the_same_with_any_number_of_workers() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize| {
        // Batches within one part and across both, in another order in each worker.
        let whole = Noise { count: 30 }.concat(Noise { count: 30 });
        let dataset = whole.map(|(number, noise, _), cx| Ok((number, noise, cx.rng().random::<u64>())));
        DataLoader::builder(dataset).batch_size(8).shuffle(true).num_workers(workers).build().unwrap()
    };
    let expected = digest(build(0).iter().unwrap()).unwrap();
    for workers in [1, 2, 3, 5] {
        assert_eq!(digest(build(workers).iter().unwrap()).unwrap(), expected, "{workers} workers");
    }
}
