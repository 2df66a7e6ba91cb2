//! Which CPUs are near the GPU of each process, as the kernel lists PCI devices.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use loader_ipc::cpu_set::CpuSet;

/// The folder with a folder per PCI device.
pub(super) const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI vendors of GPUs for computation: NVIDIA and AMD.
const VENDORS: [&str; 2] = ["0x10de", "0x1002"];
/// PCI classes of GPUs: VGA, 3D, and processing accelerators.
const CLASSES: [&str; 3] = ["0x0300", "0x0302", "0x1200"];
/// Variables that choose GPUs. Their numbers need not be those of the kernel's list.
const VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// True if a variable chooses the GPUs of this process, so that it may not use the GPU of its number.
pub(super) fn are_chosen() -> bool {
    VARIABLES.iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Returns the CPUs near GPU `rank`, the number of this process among those whose GPUs are near the same CPUs, and
/// how many these are, if process `i` of `ranks` uses GPU `i`. Of the CPUs, only `allowed` ones count.
///
/// Returns `None` if there are not as many GPUs as processes, or if some CPUs are near no GPU or near more GPUs than
/// others, so that the processes would have different numbers of CPUs.
pub(super) fn near(
    devices: &Path,
    allowed: &CpuSet,
    rank: usize,
    ranks: usize,
) -> Option<(CpuSet, usize, usize)> {
    let near: Vec<_> = gpus(devices).iter().map(|gpu| cpus_near(gpu, allowed)).collect();
    let mut groups = BTreeMap::<&CpuSet, Vec<usize>>::new();
    for (process, cpus) in near.iter().enumerate() {
        groups.entry(cpus).or_default().push(process);
    }
    let is_even =
        groups.iter().all(|(cpus, processes)| !cpus.is_empty() && processes.len() * groups.len() == ranks);
    let cpus = || groups.keys().flat_map(|cpus| cpus.iter());
    let is_partition = cpus().count() == allowed.len() && cpus().collect::<CpuSet>() == *allowed;
    if near.len() != ranks || !is_even || !is_partition {
        return None;
    }
    let own = near.get(rank)?;
    let position = groups[own].iter().position(|&process| process == rank)?;
    Some((own.clone(), position, groups[own].len()))
}

/// Returns the folders of the GPUs, in the order of their addresses on the bus.
fn gpus(devices: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    let is_one_of = |device: &Path, file: &str, values: &[&str]| {
        let text = fs::read_to_string(device.join(file)).unwrap_or_default();
        values.iter().any(|value| text.starts_with(value))
    };
    let is_gpu =
        |device: &PathBuf| is_one_of(device, "vendor", &VENDORS) && is_one_of(device, "class", &CLASSES);
    let mut gpus: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_gpu).collect();
    gpus.sort();
    gpus
}

/// Returns those of `allowed` that are near a device; empty if the kernel does not tell.
fn cpus_near(device: &Path, allowed: &CpuSet) -> CpuSet {
    let list = fs::read_to_string(device.join("local_cpulist")).unwrap_or_default();
    list.parse::<CpuSet>().unwrap_or_default().iter().filter(|&cpu| allowed.contains(cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder as the kernel does for devices with an address, a class and the CPUs near them.
    fn devices(devices: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (address, class, cpus) in devices {
            let device = folder.path().join(address);
            fs::create_dir(&device).unwrap();
            for (file, text) in [("vendor", "0x10de"), ("class", class), ("local_cpulist", cpus)] {
                fs::write(device.join(file), format!("{text}\n")).unwrap();
            }
        }
        folder
    }

    const GPU: &str = "0x030200";

    fn parts(folder: &tempfile::TempDir, allowed: &str, ranks: usize) -> Vec<Option<(String, usize, usize)>> {
        let allowed = allowed.parse().unwrap();
        let part = |rank| {
            near(folder.path(), &allowed, rank, ranks)
                .map(|(cpus, rank, ranks)| (cpus.to_string(), rank, ranks))
        };
        (0..ranks).map(part).collect()
    }

    #[test]
    fn the_cpus_near_a_gpu_are_divided_among_the_processes_of_the_gpus_near_them() {
        // The second GPU on the bus is on the second node, as on machines that interleave them. The network card between
        // them is no GPU.
        let four = devices(&[
            ("0000:17:00.0", GPU, "0-3,8-11"),
            ("0000:31:00.0", GPU, "4-7,12-15"),
            ("0000:32:00.0", "0x020000", "0-3,8-11"),
            ("0000:98:00.0", GPU, "0-3,8-11"),
            ("0000:b1:00.0", GPU, "4-7,12-15"),
        ]);
        let [first, second] = ["0-3,8-11", "4-7,12-15"];
        let expected = [(first, 0), (second, 0), (first, 1), (second, 1)];
        let expected = expected.map(|(cpus, rank)| Some((cpus.to_owned(), rank, 2)));
        assert_eq!(parts(&four, "0-15", 4), expected);
        // The control group may have a part of the machine.
        let expected = [("0-1", 0), ("4-5", 0), ("0-1", 1), ("4-5", 1)];
        let expected = expected.map(|(cpus, rank)| Some((cpus.to_owned(), rank, 2)));
        assert_eq!(parts(&four, "0-1,4-5", 4), expected);
        // Processes without a GPU, CPUs that are near none, and a node without CPUs for this control group.
        assert_eq!(parts(&four, "0-15", 8), vec![None; 8]);
        assert_eq!(parts(&four, "0-17", 4), vec![None; 4]);
        assert_eq!(parts(&four, "0-3", 4), vec![None; 4]);
    }

    #[test]
    fn uneven_and_unknown_places_of_gpus_are_left_out() {
        let uneven = devices(&[("0", GPU, "0-1"), ("1", GPU, "0-1"), ("2", GPU, "2-3")]);
        assert_eq!(parts(&uneven, "0-3", 3), vec![None; 3]);
        let unknown = devices(&[("0", GPU, ""), ("1", GPU, "0-3")]);
        assert_eq!(parts(&unknown, "0-3", 2), vec![None; 2]);
        let overlapping = devices(&[("0", GPU, "0-2"), ("1", GPU, "1-3")]);
        assert_eq!(parts(&overlapping, "0-3", 2), vec![None; 2]);
        assert_eq!(near(Path::new("/nonexistent"), &"0-3".parse().unwrap(), 0, 2), None);
    }
}
