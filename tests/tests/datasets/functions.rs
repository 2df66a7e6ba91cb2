//! Functions with and without parameters that are sent to workers: `map`, `collate`, `convert` and
//! `worker_init`.

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Counting, Noise, NoiseSample},
    everywhere,
};
use rand::RngExt;
use serde::{Deserialize, Serialize};

fn shift(sample: NoiseSample, cx: &mut SampleContext) -> anyhow::Result<f64> {
    Ok(f64::from(sample.1[0]) + cx.rng().random::<f64>())
}

fn halve(sample: NoiseSample, cx: &mut SampleContext) -> anyhow::Result<f64> {
    Ok(shift(sample, cx)? / 2.0)
}

// PyTorch: D03
#[test]
fn functions_chosen_at_run_time_reach_the_workers_with_their_parameters() {
    let _watchdog = Watchdog::start();
    let functions: [fn(NoiseSample, &mut SampleContext) -> anyhow::Result<f64>; 2] = [shift, halve];
    let sums = functions.map(|function| {
        let batches = everywhere(|workers| {
            let mean: Vec<f64> = (0..3).map(f64::from).collect();
            let dataset = Noise { count: 20 }.map(function).map_with(mean, |mean, sample, cx| {
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
        assert_eq!(batches.len(), 4);
        assert!(batches.iter().all(|(_, note)| note == "padded"));
        batches.iter().map(|(sum, _)| sum).sum::<f64>()
    });
    assert_ne!(sums[0], sums[1], "the workers called the same function");
}

// PyTorch: D03
#[test]
fn conversions_and_functions_of_streams_take_parameters() {
    let _watchdog = Watchdog::start();
    let singles = everywhere(|workers| {
        let builder = DataLoader::builder(Noise { count: 5 }).num_workers(workers);
        builder.convert_with(10u64, |factor, (number, ..)| Ok(number * factor)).build()
    });
    assert_eq!(singles, [0, 10, 20, 30, 40]);
    let streamed = everywhere(|workers| {
        let numbers = Counting { count: 6 }.map_with(100u64, |offset, (number, _), _| Ok(number + offset));
        DataLoader::stream(numbers).shards(1).batch_size(6).num_workers(workers).build()
    });
    assert_eq!(streamed[0].as_slice(), [100, 101, 102, 103, 104, 105]);
}

/// Implements neither `Serialize` nor `Convert`.
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
fn a_function_converts_samples_that_have_no_conversion() {
    let _watchdog = Watchdog::start();
    let items = everywhere(|workers| {
        let builder = DataLoader::builder(OpaqueSamples).num_workers(workers);
        builder.unbatched().convert(|sample| Ok(sample.0)).build()
    });
    assert_eq!(items, [0, 1, 2]);
}
