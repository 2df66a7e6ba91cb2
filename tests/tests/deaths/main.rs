//! Workers that die, hang, break the protocol or are late: main replaces them, and the epoch stays the same.

use std::sync::mpsc::{self, Receiver};

use loader_core::{
    Builder, Warning,
    kind::{DatasetKind, MapStyle},
    prelude::*,
};
use loader_tests::{datasets::Noise, digest};

mod combinations;
mod ends;
mod hedging;
mod kills;
mod liars;
mod no_replacement;
mod protocol_steps;
mod replacement;
mod stopped;
mod stuck;

loader_worker::init_before_main!();

fn noise(count: usize) -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count }).batch_size(4).shuffle(true)
}

/// Returns the digest of an epoch of [`noise`] without workers.
fn noise_digest(count: usize, epoch: u64) -> (u64, u64) {
    digest(noise(count).build().unwrap().epoch(epoch).unwrap()).unwrap()
}

/// Makes the loader of `builder` send its warnings to the returned receiver, except the one about the number
/// of processors.
fn with_warnings<K: DatasetKind, C, W>(builder: Builder<K, C, W>) -> (Builder<K, C, W>, Receiver<Warning>) {
    let (sender, warnings) = mpsc::channel();
    let send = move |warning: &Warning| match warning {
        Warning::MoreWorkersThanCpus { .. } => {}
        // The test may have dropped the receiver.
        other => drop(sender.send(other.clone())),
    };
    (builder.on_warning(send), warnings)
}
