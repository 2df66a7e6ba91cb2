//! The network: three convolutions, the mean over the image, and a linear layer.

use burn::{
    module::{ModuleVisitor, Param},
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    prelude::*,
    tensor::activation::relu,
};

#[derive(Module, Debug)]
pub(crate) struct Classifier {
    first: Conv2d,
    second: Conv2d,
    third: Conv2d,
    scores: Linear,
}

impl Classifier {
    pub(crate) fn new(classes: usize, device: &Device) -> Self {
        let halving = |channels| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Conv2dConfig::new(channels, [3, 3]).with_stride([2, 2]).with_padding(padding).init(device)
        };
        Self {
            first: halving([3, 16]),
            second: halving([16, 32]),
            third: halving([32, 64]),
            scores: LinearConfig::new(64, classes).init(device),
        }
    }

    /// Returns a score for each class, shape `[B, classes]`, of images of shape `[B, 3, height, width]`.
    pub(crate) fn forward(&self, pixels: Tensor<4>) -> Tensor<2> {
        let pixels = relu(self.first.forward(pixels));
        let pixels = relu(self.second.forward(pixels));
        let pixels = relu(self.third.forward(pixels));
        let means = pixels.flatten::<3>(2, 3).mean_dim(2); // [B, 64, 1]
        self.scores.forward(means.squeeze_dim(2))
    }
}

/// Returns the bytes of all weights, in the order of the fields.
pub(crate) fn bits_of_weights(model: &Classifier) -> Vec<u8> {
    struct Bytes(Vec<u8>);

    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend_from_slice(param.val().into_data().as_bytes());
        }
    }

    let mut bytes = Bytes(Vec::new());
    model.visit(&mut bytes);
    bytes.0
}
