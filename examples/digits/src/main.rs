//! Handwritten digits with candle: softmax regression, then a network with one hidden layer.
//!
//!     cargo run --release --package example-digits
//!
//! Two workers load the images of a random four fifths of the table, and `to_candle` makes candle's tensors of
//! each batch. For the network, the workers also move some images by one pixel, so that it learns
//! more than the images of the table. The images of the remaining fifth are classified after each training. The
//! program fails if the network classifies less than 97 % of them correctly.

use candle_core::{D, Device};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss::cross_entropy};
use example_digits::{CLASSES, Digit, DigitCandle, Digits, Network, PIXELS};
use loader::{
    prelude::{DataLoader, Dataset, Order, SampleContext, Subset},
    rand::RngExt,
};

const SEED: u64 = 7;
const MIN_ACCURACY: f64 = 0.97;

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let parts = Digits::open()?.random_split_by_fractions(&[0.8, 0.2], SEED, Order::Native)?;
    let [train_part, test_part] = parts.as_slice() else { anyhow::bail!("{} parts", parts.len()) };
    println!("{} images to learn from, {} to test", train_part.len(), test_part.len());

    let softmax = Network::new(&[PIXELS, CLASSES], SEED, &Device::Cpu)?;
    train(&softmax, train_part.clone(), 20)?;
    println!("softmax regression: accuracy {:.4}", accuracy(&softmax, test_part.clone())?);

    let network = Network::new(&[PIXELS, 256, CLASSES], SEED, &Device::Cpu)?;
    train(&network, train_part.clone().map(moved), 40)?;
    let accuracy = accuracy(&network, test_part.clone())?;
    println!("one hidden layer: accuracy {accuracy:.4}");
    anyhow::ensure!(accuracy >= MIN_ACCURACY, "the accuracy is {accuracy:.4}, below {MIN_ACCURACY}");
    Ok(())
}

fn train(
    network: &Network,
    images: impl Dataset<Sample = Digit> + 'static,
    epochs: u64,
) -> anyhow::Result<()> {
    let device = Device::Cpu;
    let params = ParamsAdamW { lr: 3e-3, ..Default::default() };
    let mut optimizer = AdamW::new(network.vars().to_vec(), params)?;
    let loader =
        DataLoader::builder(images).batch_size(32).shuffle(true).seed(SEED).num_workers(2).build()?;
    for epoch in 0..epochs {
        let mut losses = 0.0;
        let mut batches = loader.iter()?;
        for batch in batches.by_ref() {
            let DigitCandle { pixels, label } = batch?.to_candle(&device)?;
            let loss = cross_entropy(&network.forward(&pixels)?, &label)?;
            optimizer.backward_step(&loss)?;
            losses += loss.to_scalar::<f32>()?;
        }
        let report = batches.report();
        if (epoch + 1) % 10 == 0 {
            println!("epoch {epoch}: loss {:.4}", losses / report.batches as f32);
        }
        if epoch + 1 == epochs {
            println!("{report}");
        }
    }
    Ok(())
}

/// Moves three of ten images by one pixel at most, in each direction. A worker calls it with each image that it loads.
fn moved(digit: Digit, cx: &mut SampleContext) -> anyhow::Result<Digit> {
    let Digit { pixels, label } = digit;
    if !cx.rng().random_bool(0.3) {
        return Ok(Digit { pixels, label });
    }
    let [down, right] = [(); 2].map(|()| cx.rng().random_range(0..=2));
    // Row 1 of the image with a border is row 0 of the image. The border is 0.
    let with_border = |row: usize, column: usize| match (row, column) {
        (1..=8, 1..=8) => pixels[(row - 1) * 8 + column - 1],
        _ => 0.0,
    };
    Ok(Digit { pixels: std::array::from_fn(|i| with_border(i / 8 + down, i % 8 + right)), label })
}

/// Returns the share of the images that the network classifies correctly.
fn accuracy(network: &Network, images: Subset<Digits>) -> anyhow::Result<f64> {
    let (count, mut correct) = (images.len(), 0);
    for batch in DataLoader::builder(images).batch_size(64).build()?.iter()? {
        let DigitCandle { pixels, label } = batch?.to_candle(&Device::Cpu)?;
        let digits: Vec<u32> = network.forward(&pixels)?.argmax(D::Minus1)?.to_vec1()?;
        let labels: Vec<u8> = label.to_vec1()?;
        correct += digits.iter().zip(labels).filter(|(digit, label)| **digit == u32::from(*label)).count();
    }
    Ok(correct as f64 / count as f64)
}
