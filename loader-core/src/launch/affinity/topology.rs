//! NUMA nodes, physical cores and their hardware threads, as the kernel lists them.

use std::{collections::BTreeSet, fs};

use loader_ipc::cpu_set::CpuSet;

const FOLDER: &str = "/sys/devices/system/";

/// Some of the machine's CPUs, by NUMA node and physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The cores of each node that has CPUs. A core is its hardware threads.
    nodes: Vec<Vec<CpuSet>>,
}

impl Topology {
    /// Reads where `cpus` are. What the system does not tell counts as one node, and as one core per CPU.
    pub fn of(cpus: &CpuSet) -> Self {
        Self::read(cpus, |path| fs::read_to_string(format!("{FOLDER}{path}")).ok())
    }

    fn read(cpus: &CpuSet, file: impl Fn(&str) -> Option<String>) -> Self {
        let set = |path: &str| file(path)?.parse::<CpuSet>().ok();
        let core_of = |cpu: usize| {
            let threads = set(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
            let threads: CpuSet =
                threads.unwrap_or_default().iter().filter(|&cpu| cpus.contains(cpu)).collect();
            if threads.contains(cpu) { threads } else { CpuSet::from_iter([cpu]) }
        };
        let mut left: BTreeSet<usize> = cpus.iter().collect();
        let mut take = |of_node: &CpuSet| {
            let mut cores = Vec::new();
            while let Some(&cpu) = left.iter().find(|&&cpu| of_node.contains(cpu)) {
                let core = core_of(cpu);
                left.retain(|&cpu| !core.contains(cpu));
                cores.push(core);
            }
            cores
        };
        let numbers = set("node/online").unwrap_or_default();
        let lists = numbers.iter().filter_map(|node| set(&format!("node/node{node}/cpulist")));
        let mut nodes: Vec<_> = lists.map(|of_node| take(&of_node)).collect();
        // CPUs of which no node is known.
        nodes.push(take(cpus));
        nodes.retain(|cores| !cores.is_empty());
        Self { nodes }
    }

    /// The CPUs of each NUMA node.
    pub fn nodes(&self) -> Vec<CpuSet> {
        self.nodes.iter().map(|cores| cores.iter().flat_map(CpuSet::iter).collect()).collect()
    }

    /// Returns the part of process `rank` of `ranks`, at least one CPU. The parts differ by at most one core;
    /// if there are fewer cores than processes, by at most one CPU. Each is of adjacent cores in the order of
    /// nodes. So a part is within one node, or consists of whole nodes, if the nodes have equally many cores
    /// and one of the numbers of nodes and processes divides the other.
    pub(crate) fn part(&self, rank: usize, ranks: usize) -> CpuSet {
        let cores: Vec<_> = self.nodes.iter().flatten().cloned().collect();
        let units = if cores.len() >= ranks {
            cores
        } else {
            self.pack().into_iter().map(|cpu| CpuSet::from_iter([cpu])).collect()
        };
        let first = rank * units.len() / ranks.max(1);
        let end = ((rank + 1) * units.len() / ranks.max(1)).max(first + 1).min(units.len());
        units[first.min(end)..end].iter().flat_map(CpuSet::iter).collect()
    }

    /// Returns the CPUs in turns of the nodes, the first hardware thread of each core before the second ones.
    pub(crate) fn spread(&self) -> Vec<usize> {
        self.sorted(|(node, core, thread)| (thread, core, node))
    }

    /// Returns the CPUs node by node, in each node the first hardware thread of each core before the second
    /// ones.
    pub(crate) fn pack(&self) -> Vec<usize> {
        self.sorted(|(node, core, thread)| (node, thread, core))
    }

    /// Returns the CPUs sorted by a key of their positions: of the node, of the core in it, and of the hardware
    /// thread in that.
    fn sorted<K: Ord>(&self, key: impl Fn((usize, usize, usize)) -> K) -> Vec<usize> {
        let mut cpus = Vec::new();
        for (node, cores) in self.nodes.iter().enumerate() {
            for (core, threads) in cores.iter().enumerate() {
                cpus.extend(threads.iter().enumerate().map(|(thread, cpu)| (key((node, core, thread)), cpu)));
            }
        }
        cpus.sort();
        cpus.into_iter().map(|(_, cpu)| cpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Reads a topology from what `grep .` prints for the files in `/sys/devices/system`: `path:content`.
    fn topology(listing: &str, cpus: &str) -> Topology {
        let lines = listing.lines().filter(|line| !line.starts_with('#'));
        let files: BTreeMap<&str, &str> = lines.map(|line| line.split_once(':').unwrap()).collect();
        Topology::read(&cpus.parse().unwrap(), |path| files.get(path).map(|text| format!("{text}\n")))
    }

    /// Two nodes of four cores with two hardware threads each: 0 to 3 and 8 to 11, 4 to 7 and 12 to 15.
    fn two_sockets(cpus: &str) -> Topology {
        topology(include_str!("../../../tests/topology/two-sockets.txt"), cpus)
    }

    fn texts(sets: &[CpuSet]) -> Vec<String> {
        sets.iter().map(ToString::to_string).collect()
    }

    fn parts(topology: &Topology, ranks: usize) -> Vec<String> {
        texts(&(0..ranks).map(|rank| topology.part(rank, ranks)).collect::<Vec<_>>())
    }

    #[test]
    fn nodes_and_cores_are_read() {
        assert_eq!(texts(&two_sockets("0-15").nodes()), ["0-3,8-11", "4-7,12-15"]);
        assert_eq!(texts(&two_sockets("0-15").nodes[1]), ["4,12", "5,13", "6,14", "7,15"]);
        // Only CPUs that the process may use count.
        assert_eq!(
            two_sockets("2-3,10").nodes.iter().map(|cores| texts(cores)).collect::<Vec<_>>(),
            [["2,10", "3"]]
        );
        let this_machine = topology(include_str!("../../../tests/topology/one-node.txt"), "0-1");
        assert_eq!(texts(&this_machine.nodes()), ["0-1"]);
        // A node without CPUs (memory only) is left out, and CPUs without a node are in one.
        let memory_only = "node/online:0-1\nnode/node0/cpulist:0-1\nnode/node1/cpulist:";
        assert_eq!(texts(&topology(memory_only, "0-3").nodes()), ["0-1", "2-3"]);
        assert_eq!(topology("", "0,2").nodes, [["0", "2"].map(|cpu| cpu.parse::<CpuSet>().unwrap())]);
    }

    #[test]
    fn processes_get_adjacent_cores() {
        let all = two_sockets("0-15");
        assert_eq!(parts(&all, 1), ["0-15"]);
        assert_eq!(parts(&all, 2), ["0-3,8-11", "4-7,12-15"]);
        assert_eq!(parts(&all, 4), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
        assert_eq!(parts(&all, 3), ["0-1,8-9", "2-4,10-12", "5-7,13-15"]);
        // More processes than cores, and more than CPUs.
        assert_eq!(parts(&two_sockets("0,4,8,12"), 3), ["0", "8", "4,12"]);
        assert_eq!(parts(&two_sockets("1,5"), 4), ["1", "1", "5", "5"]);
    }

    #[test]
    fn cpus_are_ordered_by_node_or_in_turns() {
        let all = two_sockets("0-15");
        assert_eq!(all.spread(), [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
        assert_eq!(all.pack(), [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]);
        // A smaller node has no more turns, and cores come before second hardware threads everywhere.
        let uneven = two_sockets("0,8,4-7");
        assert_eq!(uneven.spread(), [0, 4, 5, 6, 7, 8]);
        assert_eq!(uneven.pack(), [0, 8, 4, 5, 6, 7]);
    }

    proptest::proptest! {
        #[test]
        fn each_cpu_has_one_process(cpus in proptest::collection::btree_set(0..16usize, 1..16), ranks in 1..20usize) {
            let set: CpuSet = cpus.iter().copied().collect();
            let topology = two_sockets(&set.to_string());
            for order in [topology.spread(), topology.pack()] {
                assert_eq!(order.iter().copied().collect::<CpuSet>(), set);
                assert_eq!(order.len(), set.len());
            }
            let parts: Vec<_> = (0..ranks).map(|rank| topology.part(rank, ranks)).collect();
            assert!(parts.iter().all(|part| !part.is_empty()));
            assert_eq!(parts.iter().flat_map(CpuSet::iter).collect::<CpuSet>(), set);
            if ranks <= set.len() {
                assert_eq!(parts.iter().map(CpuSet::len).sum::<usize>(), set.len(), "{parts:?}");
            }
        }
    }
}
