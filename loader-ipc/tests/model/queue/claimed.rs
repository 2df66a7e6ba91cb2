//! Claims: a task is either begun or withdrawn, even if an earlier task has used the same claim.

use std::sync::Arc;

use loom::thread;

use super::claims::{CLAIM_WORDS, Claims};
use crate::{
    check,
    ring::{RING_WORDS, RingReader, RingWriter},
    sys::SharedWords,
};

#[test]
fn a_task_is_begun_or_withdrawn() {
    check(5, || {
        let memory = Arc::new(SharedWords::new(RING_WORDS + CLAIM_WORDS));
        let mut commands = RingWriter::new(Arc::clone(&memory), 0);
        let mut reader = RingReader::new(Arc::clone(&memory), 0);
        // An earlier task has used the claim.
        assert!(Claims::new(&memory, RING_WORDS).begin(0));
        let at_worker = Arc::clone(&memory);
        let worker = thread::spawn(move || {
            let claims = Claims::new(&at_worker, RING_WORDS);
            let mut frame = Vec::new();
            // Returns `None` if the worker reads before main has written the task.
            reader.read(&mut frame).unwrap().then(|| claims.begin(0))
        });
        let claims = Claims::new(&memory, RING_WORDS);
        claims.open(0);
        assert!(commands.write(b"task"));
        let by_main = claims.withdraw(0);
        let by_worker = worker.join().unwrap();
        match by_worker {
            Some(by_worker) => assert!(by_worker != by_main),
            None => assert!(by_main),
        }
    });
}
