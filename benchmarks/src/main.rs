//! Measures one workload and prints JSON, one object a line: `loader-bench overhead --workers 1`.

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    loader_benchmarks::run()
}
