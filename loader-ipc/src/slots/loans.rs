//! The batches that this process holds, of all loaders.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::sys::{KeptLoan, Loan, WeakLoan};

/// Number of loans after which those that have ended are forgotten for the first time.
const FIRST_LIMIT: usize = 64;

/// True in a program that may fork workers from itself. Other programs need not note their loans.
static IS_NOTED: AtomicBool = AtomicBool::new(false);
static LOANS: Mutex<Noted> = Mutex::new(Noted { loans: Vec::new(), limit: FIRST_LIMIT });

struct Noted {
    loans: Vec<WeakLoan>,
    /// Number of loans at which those that have ended are forgotten.
    limit: usize,
}

/// Keeps the slots of batches from being used again.
///
/// A forked child shares the memory of the batches that its parent held at the fork. If the parent dropped such a batch
/// and used its slot again, the child would read another batch.
#[derive(Debug, Default)]
pub struct KeptLoans(#[allow(dead_code, reason = "its drop ends the loans")] Vec<KeptLoan>);

/// Notes all batches that the program gets from now on, for [`keep_all`]. A program that may fork workers from itself
/// calls it before it makes a loader.
pub fn note_all() {
    // Relaxed, here and below: the flag guards no other data, and no loader exists yet.
    IS_NOTED.store(true, Ordering::Relaxed);
}

/// Notes a batch that the program gets.
pub(super) fn note(loan: &Loan) {
    if !IS_NOTED.load(Ordering::Relaxed) {
        return;
    }
    let mut noted = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
    noted.loans.push(loan.downgrade());
    if noted.loans.len() >= noted.limit {
        noted.loans.retain(|loan| !loan.has_ended());
        noted.limit = FIRST_LIMIT.max(2 * noted.loans.len());
    }
}

/// Keeps all batches that the program holds now, and got after [`note_all`].
pub fn keep_all() -> KeptLoans {
    let noted = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
    KeptLoans(noted.loans.iter().filter_map(WeakLoan::keep).collect())
}
