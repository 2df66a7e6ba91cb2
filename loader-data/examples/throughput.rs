//! Measures how many images per second one core loads, and the processor time per image. On a busy machine
//! only the processor time is meaningful.
//!
//! ```text
//! cargo run --release -p loader-data --example throughput -- [FOLDER] [SECONDS]
//! ```

use std::{
    path::Path,
    time::{Duration, Instant},
};

use loader_core::{ConcatDataset, Dataset, SampleContext};
use loader_data::{ImageFolder, Transform};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder =
        arguments.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/photos").to_owned());
    let seconds = arguments.next().map_or(Ok(3.0), |seconds| seconds.parse())?;
    let duration = Duration::from_secs_f64(seconds);

    let augment = Transform::new().random_resized_crop(224).random_horizontal_flip(0.5);
    let f32s = ImageFolder::open(&folder)?;
    measure("decode, f32", &f32s, duration)?;
    measure("standard_train(224), f32", &f32s.clone().transform(Transform::standard_train(224))?, duration)?;
    measure("standard_eval(224), f32", &f32s.transform(Transform::standard_eval(224))?, duration)?;
    let u8s = ImageFolder::open_u8(&folder)?;
    measure("decode, u8", &u8s, duration)?;
    measure("random_resized_crop(224), flip, u8", &u8s.clone().transform(augment)?, duration)?;

    let scaled = u8s.transform(Transform::new().resize(256).center_crop(224, 224))?;
    measure("resize(256), center_crop(224), u8", &scaled, duration)?;
    let folder = tempfile::tempdir()?;
    measure_filling(&scaled, folder.path(), duration)?;
    measure("the same, from a cache", &scaled.cached(folder.path(), "1")?, duration)
}

fn measure(name: &str, images: &impl Dataset, duration: Duration) -> anyhow::Result<()> {
    let mut cx = SampleContext::new(0);
    let mut load = |number: usize| {
        cx.set_index(number);
        images.get(number % images.len(), &mut cx)
    };
    for number in 0..images.len() {
        load(number)?;
    }
    let (start, processor) = (Instant::now(), processor_time()?);
    let mut loaded = 0;
    while start.elapsed() < duration {
        for _ in 0..images.len() {
            load(loaded)?;
            loaded += 1;
        }
    }
    print(name, loaded, start.elapsed(), processor_time()? - processor);
    Ok(())
}

/// Measures the first epoch of 50 copies of the folder with a cache, each time with an empty one.
fn measure_filling(images: &ImageFolder<u8>, folder: &Path, duration: Duration) -> anyhow::Result<()> {
    let images = ConcatDataset::new(std::iter::repeat_n(images.clone(), 50))?;
    let mut cx = SampleContext::new(0);
    let (start, processor) = (Instant::now(), processor_time()?);
    let mut epochs = 0;
    while start.elapsed() < duration {
        let cached = images.clone().cached(folder.join(format!("filling {epochs}")), "1")?;
        (0..images.len()).try_for_each(|number| cached.get(number, &mut cx).map(drop))?;
        epochs += 1;
    }
    print("the same, filling a cache", epochs * images.len(), start.elapsed(), processor_time()? - processor);
    Ok(())
}

fn print(name: &str, loaded: usize, elapsed: Duration, processor: Duration) {
    let rate = loaded as f64 / elapsed.as_secs_f64();
    println!("{name:36} {rate:8.0} images/s {:8.3} ms", 1e3 * processor.as_secs_f64() / loaded as f64);
}

fn processor_time() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let microseconds = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(Duration::from_micros(microseconds.try_into()?))
}
