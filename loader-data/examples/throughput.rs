//! Measures how many images per second one core loads, and the processor time per image. On a busy machine
//! only the processor time is meaningful.
//!
//! ```text
//! cargo run --release -p loader-data --example throughput -- [FOLDER] [SECONDS]
//! ```

use std::time::{Duration, Instant};

use loader_core::{Dataset, SampleContext};
use loader_data::{ImageFolder, Pixel, Transform};
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
    measure("random_resized_crop(224), flip, u8", &u8s.transform(augment)?, duration)
}

fn measure<P: Pixel>(name: &str, images: &ImageFolder<P>, duration: Duration) -> anyhow::Result<()> {
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
    let (elapsed, processor) = (start.elapsed(), processor_time()? - processor);
    let rate = loaded as f64 / elapsed.as_secs_f64();
    println!("{name:36} {rate:8.0} images/s {:8.3} ms", 1e3 * processor.as_secs_f64() / loaded as f64);
    Ok(())
}

fn processor_time() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let microseconds = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(Duration::from_micros(microseconds.try_into()?))
}
