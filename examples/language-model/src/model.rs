//! A small transformer over bytes, and Adam.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Result, Tensor, Var, backprop::GradStore};
use candle_nn::ops::{log_softmax, softmax};
use loader::rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

/// The text is ASCII.
const BYTES: usize = 128;
const WIDTH: usize = 48;
const HEADS: usize = 2;
const BLOCKS: usize = 2;

/// The weights, and the moments of Adam. `AdamW` of candle-nn does not give its moments, without which a
/// training cannot be resumed exactly.
pub(crate) struct Model {
    weights: HashMap<String, Var>,
    moments: HashMap<String, [Tensor; 2]>,
    steps: i32,
}

/// Tensors of a batch: shape `[B, T]`, of `u32`.
pub(crate) struct Tokens<'a> {
    pub(crate) tokens: &'a Tensor,
    pub(crate) positions: &'a Tensor,
    pub(crate) segments: &'a Tensor,
}

impl Model {
    /// Makes a model for documents of at most `context` tokens, whose weights depend only on `seed`.
    pub(crate) fn new(context: usize, seed: u64) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut weights = HashMap::new();
        let mut add = |name: String, rows: usize, columns: usize| {
            let bound = (3.0 / columns as f32).sqrt();
            let values = (0..rows * columns).map(|_| rng.random_range(-bound..bound)).collect();
            Result::Ok(weights.insert(name, Var::from_vec(values, (rows, columns), &Device::Cpu)?))
        };
        add("tokens".into(), BYTES, WIDTH)?;
        add("positions".into(), context, WIDTH)?;
        for block in 0..BLOCKS {
            add(format!("{block}.attention"), 3 * WIDTH, WIDTH)?;
            add(format!("{block}.heads"), WIDTH, WIDTH)?;
            add(format!("{block}.up"), 4 * WIDTH, WIDTH)?;
            add(format!("{block}.down"), WIDTH, 4 * WIDTH)?;
        }
        add("logits".into(), BYTES, WIDTH)?;
        Ok(Self { weights, moments: HashMap::new(), steps: 0 })
    }

    /// Returns the logits of the next token at each position, shape `[B, T, 128]`.
    pub(crate) fn forward(&self, batch: &Tokens<'_>) -> Result<Tensor> {
        let mask = mask(batch.segments)?;
        let mut x = (self.embed("tokens", batch.tokens)? + self.embed("positions", batch.positions)?)?;
        for block in 0..BLOCKS {
            x = (&x + self.attend(block, &normed(&x)?, &mask)?)?;
            let hidden = self.linear(&format!("{block}.up"), &normed(&x)?)?.relu()?;
            x = (x + self.linear(&format!("{block}.down"), &hidden)?)?;
        }
        self.linear("logits", &normed(&x)?)
    }

    /// Returns the mean loss of the tokens that follow another one in the same document.
    pub(crate) fn loss(&self, batch: &Tokens<'_>) -> Result<Tensor> {
        let last = batch.tokens.dim(1)? - 1;
        let inputs = |tensor: &Tensor| tensor.narrow(1, 0, last)?.contiguous();
        let targets = |tensor: &Tensor| tensor.narrow(1, 1, last)?.contiguous();
        let [tokens, positions, segments] =
            [inputs(batch.tokens)?, inputs(batch.positions)?, inputs(batch.segments)?];
        let logits = self.forward(&Tokens { tokens: &tokens, positions: &positions, segments: &segments })?;
        let chosen =
            log_softmax(&logits, D::Minus1)?.gather(&targets(batch.tokens)?.unsqueeze(2)?, 2)?.squeeze(2)?;
        let is_document = segments.ne(0_u32)?;
        let counts = (segments.eq(&targets(batch.segments)?)? * is_document)?.to_dtype(DType::F32)?;
        (chosen * &counts)?.sum_all()?.div(&counts.sum_all()?)?.neg()
    }

    /// Makes a step of Adam.
    pub(crate) fn step(&mut self, gradients: &GradStore, rate: f64) -> Result<()> {
        const DECAYS: [f64; 2] = [0.9, 0.99];
        self.steps += 1;
        for (name, var) in &self.weights {
            let Some(gradient) = gradients.get(var) else { continue };
            let [mean, square] = match self.moments.remove(name) {
                Some(moments) => moments,
                None => [var.zeros_like()?, var.zeros_like()?],
            };
            let mean = ((mean * DECAYS[0])? + (gradient * (1.0 - DECAYS[0]))?)?;
            let square = ((square * DECAYS[1])? + (gradient.sqr()? * (1.0 - DECAYS[1]))?)?;
            let unbiased = |moment: &Tensor, decay: f64| moment / (1.0 - decay.powi(self.steps));
            let length = (unbiased(&square, DECAYS[1])?.sqrt()? + 1e-8)?;
            var.set(&(var.as_tensor() - (unbiased(&mean, DECAYS[0])? / length)? * rate)?)?;
            self.moments.insert(name.clone(), [mean.detach(), square.detach()]);
        }
        Ok(())
    }

    /// Returns all that a training needs to go on, by name.
    pub(crate) fn tensors(&self) -> Result<HashMap<String, Tensor>> {
        let weights = self.weights.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        let moments = self.moments.iter().flat_map(|(name, [mean, square])| {
            [(format!("{name}.mean"), mean.clone()), (format!("{name}.square"), square.clone())]
        });
        let steps = Tensor::new(i64::from(self.steps), &Device::Cpu)?;
        Ok(weights.chain(moments).chain([("steps".to_owned(), steps)]).collect())
    }

    /// Replaces all of it by saved `tensors`.
    pub(crate) fn restore(&mut self, tensors: &HashMap<String, Tensor>) -> anyhow::Result<()> {
        let named = |name: String| tensors.get(&name).ok_or_else(|| anyhow::anyhow!("`{name}` is missing"));
        for (name, var) in &self.weights {
            var.set(named(name.clone())?)?;
            let moments = [named(format!("{name}.mean"))?.clone(), named(format!("{name}.square"))?.clone()];
            self.moments.insert(name.clone(), moments);
        }
        self.steps = named("steps".to_owned())?.to_scalar::<i64>()?.try_into()?;
        Ok(())
    }

    fn embed(&self, name: &str, ids: &Tensor) -> Result<Tensor> {
        let (rows, columns) = ids.dims2()?;
        self.weights[name].index_select(&ids.flatten_all()?, 0)?.reshape((rows, columns, WIDTH))
    }

    fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        // As one matrix: `broadcast_matmul` would copy the weights for each window.
        let (rows, columns, width) = x.dims3()?;
        let y = x.reshape((rows * columns, width))?.matmul(&self.weights[name].t()?)?;
        y.reshape((rows, columns, ()))
    }

    fn attend(&self, block: usize, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (rows, columns, _) = x.dims3()?;
        let all = self.linear(&format!("{block}.attention"), x)?;
        let all = all.reshape((rows, columns, 3 * HEADS, WIDTH / HEADS))?.transpose(1, 2)?;
        let part = |index| all.narrow(1, index * HEADS, HEADS)?.contiguous();
        let [queries, keys, values] = [part(0)?, part(1)?, part(2)?];
        let scores = (queries.matmul(&keys.t()?)? / ((WIDTH / HEADS) as f64).sqrt())?;
        let mixed = softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&values)?;
        self.linear(&format!("{block}.heads"), &mixed.transpose(1, 2)?.reshape((rows, columns, WIDTH))?)
    }
}

/// What is added to the scores, shape `[B, 1, T, T]`: 0 where a token may attend to another one, because that comes
/// before it in the same document, and a large negative number elsewhere.
fn mask(segments: &Tensor) -> Result<Tensor> {
    let columns = segments.dim(1)?;
    let same = segments.unsqueeze(2)?.broadcast_eq(&segments.unsqueeze(1)?)?.to_dtype(DType::F32)?;
    let allowed = same.broadcast_mul(&Tensor::tril2(columns, DType::F32, segments.device())?)?;
    ((allowed - 1.0)? * 1e9)?.unsqueeze(1)
}

/// Root mean square normalization without weights. (`candle_nn::LayerNorm` has no gradient in its fast form.)
fn normed(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?)
}
