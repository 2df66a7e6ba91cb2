//! Measures one workload and prints a line of JSON. Usage: `loader-bench overhead --workers 1`.

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    loader_benchmarks::run()
}
