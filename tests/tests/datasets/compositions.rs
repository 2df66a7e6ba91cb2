//! Datasets made of others: the same with any number of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::Context;
use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Fault as FaultOf, Faulty, Many, ManyFault as Fault, Noise, NoiseSample, many},
    digest, everywhere,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

fn numbers(len: usize) -> Tensor<i64> {
    Tensor::from_vec((0..len as i64).collect(), [len]).unwrap()
}

fn noise(count: usize) -> Noise {
    Noise { count }
}

// PyTorch: 92, U27
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

// PyTorch: U01, U11
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

// PyTorch: U01
#[test]
fn without_workers_the_tensors_are_in_memory_once_too() {
    let bytes = Tensor::<u8>::zeros([4, 1 << 20]).unwrap();
    let dataset = TensorDataset::new(bytes).unwrap().map(|bytes, _| mapping_of(bytes.as_ptr().addr()));
    let loader = DataLoader::builder(dataset).batch_size(4).build().unwrap();
    let mappings = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(mappings.len(), 4);
    let is_sealed = |mapping: &String| mapping.starts_with("r--s") && mapping.contains("memfd");
    assert!(mappings.iter().all(is_sealed), "the dataset is a view of the sealed copy: {mappings:?}");
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

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        anyhow::bail!("get_many is there")
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
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

fn shift(sample: NoiseSample, cx: &mut SampleContext) -> anyhow::Result<f64> {
    Ok(f64::from(sample.1[0]) + cx.rng().random::<f64>())
}

fn halve(sample: NoiseSample, cx: &mut SampleContext) -> anyhow::Result<f64> {
    Ok(shift(sample, cx)? / 2.0)
}

#[test]
fn functions_chosen_at_run_time_and_their_parameters_reach_the_workers() {
    let _watchdog = Watchdog::start();
    let functions: [fn(NoiseSample, &mut SampleContext) -> anyhow::Result<f64>; 2] = [shift, halve];
    let sums = functions.map(|function| {
        let batches = everywhere(|workers| {
            let mean: Vec<f64> = (0..3).map(f64::from).collect();
            let dataset = noise(20).map(function).map_with(mean, |mean, sample, cx| {
                Ok(vec![sample - mean[cx.index() % 3]; 1 + cx.index() % 4])
            });
            let builder = DataLoader::builder(dataset).batch_size(6).shuffle(true).num_workers(workers);
            builder
                .worker_init_with((workers, String::from("all")), |(workers, who), worker| {
                    anyhow::ensure!(worker.num_workers() == *workers && who == "all");
                    Ok(())
                })
                .collate_with(String::from("padded"), |note: &String, samples: Vec<Vec<f64>>| {
                    Ok((samples.iter().map(|sample| sample[0]).sum::<f64>(), note.clone()))
                })
                .build()
        });
        assert!(batches.iter().all(|(_, note)| note == "padded"));
        batches.iter().map(|(sum, _)| sum).sum::<f64>()
    });
    assert_ne!(sums[0], sums[1], "each function is itself");
}

#[test]
fn single_samples_and_streams_take_functions_with_parameters() {
    let _watchdog = Watchdog::start();
    let singles = everywhere(|workers| {
        let builder = DataLoader::builder(noise(5)).num_workers(workers);
        builder.convert_with(10u64, |factor, (number, ..)| Ok(number * factor)).build()
    });
    assert_eq!(singles, [0, 10, 20, 30, 40]);
    let streamed = everywhere(|workers| {
        let numbers = Counting { count: 6 }.map_with(100u64, |offset, (number, _), _| Ok(number + offset));
        DataLoader::stream(numbers).shards(1).batch_size(6).num_workers(workers).build()
    });
    assert_eq!(streamed[0].as_slice(), [100, 101, 102, 103, 104, 105]);
}

/// Neither serialisable nor convertible.
struct Opaque(u8);

#[derive(Serialize, Deserialize)]
struct OpaqueSamples;

impl Dataset for OpaqueSamples {
    type Sample = Opaque;

    fn len(&self) -> usize {
        3
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Opaque> {
        Ok(Opaque(index as u8))
    }
}

#[test]
fn samples_without_a_conversion_of_their_own_are_converted_by_a_function() {
    let _watchdog = Watchdog::start();
    let items = everywhere(|workers| {
        let builder = DataLoader::builder(OpaqueSamples).num_workers(workers);
        builder.unbatched().convert(|sample| Ok(sample.0)).build()
    });
    assert_eq!(items, [0, 1, 2]);
}
