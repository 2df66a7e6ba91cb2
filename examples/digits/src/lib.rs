//! The table of handwritten digits as a dataset, and a small network of candle.

use std::io::{BufRead, BufReader};

use anyhow::Context;
use candle_core::{Device, Module, Tensor, Var};
use candle_nn::Linear;
use flate2::bufread::GzDecoder;
use loader::{
    prelude::{Dataset, Sample, SampleContext, SharedVec},
    rand::{RngExt, SeedableRng, rngs::ChaCha8Rng},
};
use serde::{Deserialize, Serialize};

/// Number of pixels of an image.
pub const PIXELS: usize = 64;

/// Number of classes.
pub const CLASSES: usize = 10;

/// 1,797 handwritten digits. All workers read the rows from the same shared memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Digits {
    rows: SharedVec<(Vec<u8>, u8)>,
}

/// An image of 8 by 8 pixels. The derive makes `DigitBatch { pixels: Tensor<f32>, label: Tensor<u8> }`, and
/// `DigitCandle` with the same fields as tensors of candle.
#[derive(Debug, Sample)]
#[sample(candle)]
pub struct Digit {
    /// Brightness of each pixel, from 0 to 1.
    pub pixels: [f32; PIXELS],
    /// The digit.
    pub label: u8,
}

impl Digits {
    /// Reads the table, which is part of the program.
    ///
    /// # Errors
    /// Returns an error if a line is not that of 64 pixels and a digit.
    pub fn open() -> anyhow::Result<Self> {
        let lines = BufReader::new(GzDecoder::new(include_bytes!("../digits.csv.gz").as_slice())).lines();
        let rows: Vec<_> = (1..)
            .zip(lines)
            .map(|(number, line)| parse(&line?).with_context(|| format!("line {number} of digits.csv")))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { rows: SharedVec::new(rows)? })
    }
}

fn parse(line: &str) -> anyhow::Result<(Vec<u8>, u8)> {
    let mut values = line.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
    let label = values.pop().context("the line is empty")?;
    anyhow::ensure!(values.len() == PIXELS, "{} pixels instead of {PIXELS}", values.len());
    Ok((values, label))
}

impl Dataset for Digits {
    type Sample = Digit;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Digit> {
        let (pixels, label) = self.rows.get(index)?;
        Ok(Digit { pixels: std::array::from_fn(|i| f32::from(pixels[i]) / 16.0), label })
    }
}

/// Linear layers with a ReLU between them. With one layer and the cross-entropy, it is softmax regression.
#[derive(Debug)]
pub struct Network {
    layers: Vec<Linear>,
    vars: Vec<Var>,
}

impl Network {
    /// Makes layers of the given `sizes`: that of the input first, that of the output last. The weights depend
    /// only on `seed`. (candle's own initialization on the CPU has no seed.)
    ///
    /// # Errors
    /// Returns candle's error if it cannot make the tensors.
    pub fn new(sizes: &[usize], seed: u64, device: &Device) -> candle_core::Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut layers, mut vars) = (Vec::new(), Vec::new());
        for pair in sizes.windows(2) {
            let [inputs, outputs] = [pair[0], pair[1]];
            let bound = (3.0 / inputs as f32).sqrt();
            let weights = (0..outputs * inputs).map(|_| rng.random_range(-bound..bound)).collect();
            let weights = Var::from_vec(weights, (outputs, inputs), device)?;
            let biases = Var::from_vec(vec![0.0_f32; outputs], outputs, device)?;
            layers.push(Linear::new(weights.as_tensor().clone(), Some(biases.as_tensor().clone())));
            vars.extend([weights, biases]);
        }
        Ok(Self { layers, vars })
    }

    /// The weights and biases, in the order of the layers.
    pub fn vars(&self) -> &[Var] {
        &self.vars
    }

    /// Returns the logits of each image of a batch of shape `[B, 64]`.
    ///
    /// # Errors
    /// Returns candle's error if the shape does not fit.
    pub fn forward(&self, pixels: &Tensor) -> candle_core::Result<Tensor> {
        let mut layers = self.layers.iter();
        let first = layers.next().map_or_else(|| Ok(pixels.clone()), |layer| layer.forward(pixels))?;
        layers.try_fold(first, |values, layer| layer.forward(&values.relu()?))
    }
}
