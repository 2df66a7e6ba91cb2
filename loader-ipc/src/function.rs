//! A function that is part of a value that main sends to workers.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use crate::{
    attach,
    entry::{AnyFunction, Signature},
};

/// A function pointer of type `G::Pointer`. It can be encoded only as part of a value [with
/// attachments](attach), for another process of the same build.
pub struct Function<G: Signature>(G::Pointer);

impl<G: Signature> Function<G> {
    /// Wraps `pointer`.
    pub fn new(pointer: G::Pointer) -> Self {
        Self(pointer)
    }

    /// Returns the pointer.
    pub fn get(&self) -> G::Pointer {
        self.0
    }
}

impl<G: Signature> Clone for Function<G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G: Signature> Copy for Function<G> {}

impl<G: Signature> Serialize for Function<G> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match attach::attach_function(AnyFunction::new::<G>(self.0)) {
            Some(number) => serializer.serialize_u32(number),
            None => Err(S::Error::custom(
                "a function can only be sent to workers; it cannot be serialised otherwise",
            )),
        }
    }
}

impl<'de, G: Signature> Deserialize<'de> for Function<G> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        // A false number does no harm: the table holds only functions that were encoded, each with its exact
        // type.
        let function = attach::function(number).and_then(AnyFunction::get::<G>);
        function.map(Self).ok_or_else(|| {
            D::Error::custom(format_args!("the value was sent without a function {number} of this type"))
        })
    }
}

impl<G: Signature> fmt::Debug for Function<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Owned;

    type Double = Function<Owned<u32, u32>>;

    fn double(number: u32) -> u32 {
        2 * number
    }

    #[test]
    fn functions_are_decoded_with_the_value() {
        let closure: fn(u32) -> u32 = |number| number + 1;
        let first = Double::new(double);
        let value = (first, Double::new(closure), first);
        let (bytes, attached) = attach::encode(&value).unwrap();
        assert_eq!(attached.functions.len(), 2, "a function that occurs twice is sent once");
        let (first, second, third): (Double, Double, Double) = attach::decode(&bytes, attached).unwrap();
        assert_eq!((first.get()(5), second.get()(5), third.get()(5)), (10, 6, 10));
    }

    /// A type without values: to make up a function that returns it would be unsound.
    #[derive(Clone, Copy)]
    enum Never {}

    #[test]
    fn a_function_that_was_not_encoded_cannot_be_decoded() {
        type Impossible = Function<Owned<(), Never>>;
        let (_, attached) = attach::encode(&Double::new(double)).unwrap();
        for number in [0u32, 1, u32::MAX] {
            let bytes = number.to_le_bytes();
            assert!(
                attach::decode::<Impossible>(&bytes, attached.clone()).is_err(),
                "its type was never encoded"
            );
            assert!(crate::codec::decode::<Impossible>(&bytes).is_err());
        }
        assert!(attach::decode::<Double>(&0u32.to_le_bytes(), attached).is_ok());
        assert!(crate::codec::decode::<Double>(&0u32.to_le_bytes()).is_err(), "there are no attachments");
        assert!(crate::codec::encode(&Double::new(double)).is_err());
    }
}
