//! Options of the transforms of images.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IntoDeserializer, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use super::transform::{Step, Transform};

/// Default width and height of transformed images, in pixels.
pub(crate) const DEFAULT_SIZE: u32 = 224;

/// A transform in a config: the name of a standard one, or a list of steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum TransformOptions {
    /// A standard transform.
    Standard(StandardTransform),
    /// A list of steps.
    Steps(Transform),
}

impl Default for TransformOptions {
    /// Returns no transform.
    fn default() -> Self {
        Self::Standard(StandardTransform::None)
    }
}

impl<'de> Deserialize<'de> for TransformOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TransformVisitor)
    }
}

/// The name of a transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StandardTransform {
    /// Random resized crop, random flip, normalisation
    Train,
    /// Resize, central crop, normalisation
    Eval,
    /// No transform; all images of a batch must have the same size
    None,
}

impl StandardTransform {
    /// Returns the steps for images of `size` pixels, with normalisation only for pixels of type `f32`.
    pub(crate) fn steps(self, size: u32, pixels: PixelOption) -> Transform {
        let standard = match self {
            Self::Train => Transform::standard_train(size),
            Self::Eval => Transform::standard_eval(size),
            Self::None => Transform::new(),
        };
        let is_kept = |step: &&Step| pixels == PixelOption::F32 || !matches!(step, Step::Normalise { .. });
        standard.steps().iter().filter(is_kept).copied().fold(Transform::new(), Transform::step)
    }
}

/// The type of pixels, by its name in a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PixelOption {
    /// 32-bit floats, normalised by the transforms train and eval
    F32,
    /// Bytes, never normalised by the transforms train and eval
    U8,
}

/// Unlike the code that serde derives for such an enum, its errors say what is wrong with a step.
struct TransformVisitor;

impl<'de> Visitor<'de> for TransformVisitor {
    type Value = TransformOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`train`, `eval`, `none` or a list of steps for `transform`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<TransformOptions, E> {
        StandardTransform::deserialize(name.into_deserializer()).map(TransformOptions::Standard)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, steps: A) -> Result<TransformOptions, A::Error> {
        Transform::deserialize(SeqAccessDeserializer::new(steps)).map(TransformOptions::Steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_transform_says_what_is_wrong_with_it() {
        for (text, expected) in [
            (r#"[{"resize": {"size": 3}}, {"resize": {"sise": 3}}]"#, "unknown field `sise`"),
            (r#"[{"resizes": {"size": 3}}]"#, "unknown variant `resizes`"),
            (r#""trains""#, "unknown variant `trains`"),
            ("3", "`train`, `eval`, `none` or a list of steps"),
        ] {
            let error = serde_json::from_str::<TransformOptions>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
