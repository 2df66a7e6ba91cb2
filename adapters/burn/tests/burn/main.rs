//! The conformance of burn's tensors on the backend flex, what is special to them, and burn's `DataLoader`
//! over worker processes.

mod ahead;
mod batches;
mod conformance;
mod learner;
mod loaders;
mod tensors;

loader::init_before_main!();
