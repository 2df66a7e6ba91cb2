//! Large read-only content beside an encoded value: the value's bytes hold a number, the content travels as a descriptor and is
//! mapped once by each process, whatever its size.

use std::{cell::RefCell, sync::Arc, thread::LocalKey};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{self, CodecError},
    memory::SealedMemory,
};

type Attached = Option<Vec<Arc<SealedMemory>>>;

thread_local! {
    static PUT: RefCell<Attached> = const { RefCell::new(None) };
    static TAKE: RefCell<Attached> = const { RefCell::new(None) };
}

/// Goes back to what was there before, also when user code panics.
struct Restore(&'static LocalKey<RefCell<Attached>>, Attached);

impl Drop for Restore {
    fn drop(&mut self) {
        self.0.set(self.1.take());
    }
}

/// Encodes `value` and collects what it attaches.
///
/// # Errors
/// When the value's own `Serialize` fails.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<(Vec<u8>, Vec<Arc<SealedMemory>>), CodecError> {
    let _restore = Restore(&PUT, PUT.replace(Some(Vec::new())));
    let bytes = codec::encode(value)?;
    Ok((bytes, PUT.take().unwrap_or_default()))
}

/// Decodes a value with what was attached to it.
///
/// # Errors
/// When the bytes are not such a value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], attached: Vec<Arc<SealedMemory>>) -> Result<T, CodecError> {
    let _restore = Restore(&TAKE, TAKE.replace(Some(attached)));
    codec::decode(bytes)
}

/// Attaches `memory` to the value that this thread is encoding and gives the number to write in its place; `None` when nothing
/// is being encoded for another process, so that the content itself must be written.
pub fn put(memory: &Arc<SealedMemory>) -> Option<u32> {
    PUT.with_borrow_mut(|put| {
        let list = put.as_mut()?;
        let known = list.iter().position(|other| Arc::ptr_eq(other, memory));
        let place = known.unwrap_or_else(|| {
            list.push(Arc::clone(memory));
            list.len() - 1
        });
        Some(u32::try_from(place).expect("fewer attachments than descriptors"))
    })
}

/// True while this thread decodes a value with attachments.
pub fn is_taking() -> bool {
    TAKE.with_borrow(Option::is_some)
}

/// The content attached under `number`, if there is one.
pub fn take(number: u32) -> Option<Arc<SealedMemory>> {
    TAKE.with_borrow(|take| take.as_ref()?.get(usize::try_from(number).ok()?).map(Arc::clone))
}
