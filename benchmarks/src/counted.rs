//! `loader-bench` with an allocator that counts, in main and in the workers: `loader-bench-counted steady`.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    loader_benchmarks::run()
}
