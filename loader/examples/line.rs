//! Fits a line to noisy points that two worker processes load, stops in mid-epoch, and goes on from the saved
//! state in a new loader.
//!
//! `cargo run --package loader --example line`

use anyhow::Context;
use loader::{prelude::*, rand::RngExt};
use serde::{Deserialize, Serialize};

/// Points near the line `y = slope * x + height`.
#[derive(Serialize, Deserialize)]
struct Points {
    slope: f32,
    height: f32,
}

/// The derive makes `PointBatch { x: Tensor<f32>, y: Tensor<f32> }`.
#[derive(Sample)]
struct Point {
    x: f32,
    y: f32,
}

impl Dataset for Points {
    type Sample = Point;

    fn len(&self) -> usize {
        2000
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Point> {
        let x = index as f32 / 2000.0;
        Ok(Point { x, y: self.slope * x + self.height })
    }
}

/// Builds a loader. Workers run the closure; it gets the value of `noise` as a parameter.
fn open(noise: f32, workers: usize) -> anyhow::Result<DataLoader<PointBatch>> {
    let points = Points { slope: 3.0, height: -1.0 }.map_with(noise, |noise, mut point, cx| {
        point.y += noise * (cx.rng().random::<f32>() - 0.5);
        Ok(point)
    });
    DataLoader::builder(points)
        .batch_size(20)
        .shuffle(true)
        .seed(1)
        .num_workers(workers)
        .build()
        .context("the loader cannot be built")
}

fn main() -> anyhow::Result<()> {
    loader::init(); // the first line of main: a worker never returns from it

    let (mut slope, mut height) = (0.0, 0.0);
    let mut step = |batch: &PointBatch| {
        for (x, y) in batch.x.as_slice().iter().zip(batch.y.as_slice()) {
            let error = slope * x + height - y;
            slope -= 0.05 * error * x;
            height -= 0.05 * error;
        }
    };

    let first = open(0.1, 2)?;
    let mut batches = first.iter()?;
    for batch in batches.by_ref().take(30) {
        step(&batch?);
    }
    let saved = serde_json::to_string(&batches.state())?;
    drop(batches);

    let second = open(0.1, 1)?;
    for batch in second.resume(&serde_json::from_str(&saved)?)? {
        step(&batch?);
    }
    for _epoch in 1..5 {
        for batch in second.iter()? {
            step(&batch?);
        }
    }
    println!("y = {slope:.2} x + {height:.2}");
    anyhow::ensure!((slope - 3.0).abs() < 0.1 && (height + 1.0).abs() < 0.1, "the line is wrong");
    Ok(())
}
