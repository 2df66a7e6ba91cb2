//! Which CPUs are near the GPU of a process, as the kernel lists PCI devices.

use std::{collections::BTreeMap, fs, path::Path};

use loader_ipc::cpu_set::CpuSet;

/// The folder in which the kernel lists PCI devices.
pub(super) const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI vendors of GPUs for computation: NVIDIA and AMD.
const VENDORS: [&str; 2] = ["0x10de", "0x1002"];
/// PCI classes of GPUs: VGA, 3D and other display controllers, and processing accelerators.
const CLASSES: [&str; 4] = ["0x0300", "0x0302", "0x0380", "0x1200"];
/// Variables that list the numbers of the GPUs that a process may use.
const VISIBLE_GPUS: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];
/// The variable that lists the GPUs of a container, which sees all GPUs of the machine in [`DEVICES`].
const GPUS_OF_CONTAINER: &str = "NVIDIA_VISIBLE_DEVICES";

/// The CPUs that a process shares with the other processes whose GPUs are near them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SharedCpus {
    pub(super) cpus: CpuSet,
    /// Number of this process among those that share the CPUs, from 0.
    pub(super) position: usize,
    /// Number of processes that share the CPUs.
    pub(super) processes: usize,
}

/// True if process `i` of `ranks` may be assumed to use GPU `i`: no variable lists other GPUs.
pub(super) fn have_ranks(ranks: usize, variable: impl Fn(&str) -> Option<String>) -> bool {
    let lists_all = |value: &str| value.split(',').map(str::trim).eq((0..ranks).map(|gpu| gpu.to_string()));
    VISIBLE_GPUS.iter().all(|name| variable(name).is_none_or(|value| lists_all(&value)))
        && variable(GPUS_OF_CONTAINER).is_none_or(|value| value == "all")
}

/// Returns the CPUs of `allowed` near GPU `rank`, if process `i` of `ranks` uses GPU `i`.
///
/// Returns `None` unless the machine has `ranks` GPUs of one model, each CPU of `allowed` is near GPUs, and each GPU
/// has equally many CPUs: some processes would otherwise have fewer CPUs than others.
pub(super) fn shared_cpus(devices: &Path, allowed: &CpuSet, rank: usize, ranks: usize) -> Option<SharedCpus> {
    let of_gpus = cpus_of_gpus(devices, allowed, ranks)?;
    let mut gpus_near = BTreeMap::<&CpuSet, Vec<usize>>::new();
    for (gpu, cpus) in of_gpus.iter().enumerate() {
        gpus_near.entry(cpus).or_default().push(gpu);
    }
    let groups = gpus_near.len();
    let is_even = gpus_near
        .iter()
        .all(|(cpus, gpus)| cpus.len() * groups == allowed.len() && gpus.len() * groups == ranks);
    let all: CpuSet = gpus_near.keys().flat_map(|cpus| cpus.iter()).collect();
    let own = of_gpus.get(rank).filter(|_| is_even && all == *allowed)?;
    let gpus = &gpus_near[own];
    let position = gpus.iter().position(|&gpu| gpu == rank)?;
    Some(SharedCpus { cpus: own.clone(), position, processes: gpus.len() })
}

/// Finds the model of which the machine has `count` GPUs, and sorts these by address. Returns the CPUs of `allowed`
/// near each of them. Returns `None` if the machine has no such model, or several.
fn cpus_of_gpus(devices: &Path, allowed: &CpuSet, count: usize) -> Option<Vec<CpuSet>> {
    let mut models = BTreeMap::<(String, String), Vec<_>>::new();
    for device in fs::read_dir(devices).ok()?.flatten() {
        let read = |file| fs::read_to_string(device.path().join(file)).unwrap_or_default();
        let is_one_of = |values: &[&str], text: &str| values.iter().any(|value| text.starts_with(value));
        let vendor = read("vendor");
        if is_one_of(&VENDORS, &vendor) && is_one_of(&CLASSES, &read("class")) {
            let name = device.file_name();
            // A longer address has a larger number of the PCI domain.
            let gpu = ((name.len(), name), read("local_cpulist"));
            models.entry((vendor, read("device"))).or_default().push(gpu);
        }
    }
    let mut models = models.into_values().filter(|gpus| gpus.len() == count);
    let mut gpus = models.next().filter(|_| models.next().is_none())?;
    gpus.sort();
    let near = |list: &str| {
        let cpus = list.parse::<CpuSet>().unwrap_or_default();
        cpus.iter().filter(|&cpu| allowed.contains(cpu)).collect()
    };
    Some(gpus.iter().map(|(_, list)| near(list)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of a GPU without a display.
    const GPU: &str = "0x030200";

    /// Makes a folder as the kernel does, for devices with an address, a class, a model and the CPUs near them.
    fn devices(devices: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (address, class, model, cpus) in devices {
            let device = folder.path().join(address);
            fs::create_dir(&device).unwrap();
            let files = [("vendor", "0x10de"), ("class", class), ("device", model), ("local_cpulist", cpus)];
            for (file, text) in files {
                fs::write(device.join(file), format!("{text}\n")).unwrap();
            }
        }
        folder
    }

    fn shared(
        folder: &tempfile::TempDir,
        allowed: &str,
        ranks: usize,
    ) -> Vec<Option<(String, usize, usize)>> {
        let allowed = allowed.parse().unwrap();
        let shared = |rank| {
            let shared = shared_cpus(folder.path(), &allowed, rank, ranks)?;
            Some((shared.cpus.to_string(), shared.position, shared.processes))
        };
        (0..ranks).map(shared).collect()
    }

    #[test]
    fn processes_share_the_cpus_near_their_gpus() {
        // The second GPU by address is on the second node, as on machines that interleave them. The card of another
        // model and the network card do not count.
        let four = devices(&[
            ("0000:17:00.0", GPU, "0x2330", "0-3,8-11"),
            ("0000:31:00.0", GPU, "0x2330", "4-7,12-15"),
            ("0000:32:00.0", "0x020000", "0x1021", "0-3,8-11"),
            ("0000:98:00.0", GPU, "0x2330", "0-3,8-11"),
            ("0000:99:00.0", "0x030000", "0x1cb1", "0-3,8-11"),
            ("10000:01:00.0", "0x038000", "0x2330", "4-7,12-15"),
        ]);
        let halves = |[first, second]: [&str; 2]| {
            [(first, 0), (second, 0), (first, 1), (second, 1)]
                .map(|(cpus, position)| Some((cpus.to_owned(), position, 2)))
        };
        assert_eq!(shared(&four, "0-15", 4), halves(["0-3,8-11", "4-7,12-15"]));
        // The control group has a part of the machine, which may be uneven or without CPUs of the second node.
        assert_eq!(shared(&four, "0-1,4-5", 4), halves(["0-1", "4-5"]));
        assert_eq!(shared(&four, "0,4-7", 4), vec![None; 4]);
        assert_eq!(shared(&four, "0-3", 4), vec![None; 4]);
        // CPUs that are near no GPU, and another number of processes.
        assert_eq!(shared(&four, "0-17", 4), vec![None; 4]);
        assert_eq!(shared(&four, "0-15", 8), vec![None; 8]);
        // The only model of which there is one.
        assert_eq!(shared(&four, "0-3,8-11", 1), [Some(("0-3,8-11".to_owned(), 0, 1))]);
    }

    #[test]
    fn gpus_whose_places_are_uneven_or_unknown_are_not_considered() {
        let uneven = devices(&[("0", GPU, "a", "0-1"), ("1", GPU, "a", "0-1"), ("2", GPU, "a", "2-3")]);
        assert_eq!(shared(&uneven, "0-3", 3), vec![None; 3]);
        let two_models = devices(&[("0", GPU, "a", "0-1"), ("1", GPU, "b", "2-3")]);
        assert_eq!(shared(&two_models, "0-3", 1), [None]);
        let overlapping = devices(&[("0", GPU, "a", "0-2"), ("1", GPU, "a", "1-3")]);
        assert_eq!(shared(&overlapping, "0-3", 2), vec![None; 2]);
        // The kernel lists all CPUs for a device of which it does not know the node.
        let unknown = devices(&[("0", GPU, "a", "0-3"), ("1", GPU, "a", "0-3")]);
        let all = |position| Some(("0-3".to_owned(), position, 2));
        assert_eq!(shared(&unknown, "0-3", 2), [all(0), all(1)]);
        assert_eq!(shared_cpus(Path::new("/nonexistent"), &"0-3".parse().unwrap(), 0, 2), None);
    }

    #[test]
    fn variables_that_list_other_gpus_are_noticed() {
        let have = |name: &'static str, value: &str| {
            have_ranks(2, |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(
            have("OTHER", "1")
                && have("CUDA_VISIBLE_DEVICES", "0,1")
                && have("NVIDIA_VISIBLE_DEVICES", "all")
        );
        for value in ["", "0", "1,0", "0,1,2", "GPU-8d2"] {
            assert!(
                !have("CUDA_VISIBLE_DEVICES", value) && !have("NVIDIA_VISIBLE_DEVICES", value),
                "{value}"
            );
        }
    }
}
