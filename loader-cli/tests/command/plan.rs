//! `loader plan`: its output, and the requests that it refuses.

use crate::support::{PHOTOS, Running, command, run};

fn plan(arguments: &[&str]) -> String {
    let finished = run(&[&["plan"], arguments].concat());
    finished.assert_status(0);
    assert_eq!(finished.stderr, "");
    finished.stdout
}

/// Returns the indices of each batch.
fn batches(arguments: &[&str]) -> Vec<Vec<usize>> {
    let indices = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["indices"].take();
    plan(arguments).lines().map(|line| serde_json::from_value(indices(line)).unwrap()).collect()
}

#[test]
fn an_empty_dataset_and_one_larger_than_memory() {
    assert_eq!(plan(&["--length", "0", "--batch-size", "4"]), "");
    let refused = |arguments: &[&str], text: &str| {
        let finished = run(&[&["plan"], arguments].concat());
        finished.assert_status(2);
        assert!(finished.stderr.contains(text), "{}", finished.stderr);
    };
    refused(&["--length", "0", "--shuffle"], "the dataset is empty");
    let in_memory = ["--length", "18446744073709551615", "--shuffle", "--order", "torch"];
    refused(&in_memory, "larger than the machine's memory");
    let whole = ["--length", "18446744073709551615", "--batch-size", "18446744073709551615"];
    refused(&whole, "larger than the machine's memory");
}

#[test]
fn without_shuffle_indices_are_in_order() {
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[0,1,2,3]}\n{\"epoch\":0,\"batch\":1,\"indices\":[4,5,6,7]}\n\
                    {\"epoch\":0,\"batch\":2,\"indices\":[8,9]}\n";
    assert_eq!(plan(&["--length", "10", "--batch-size", "4"]), expected);
    let full = expected.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!(plan(&["--length", "10", "--batch-size", "4", "--drop-last"]), full);
}

/// The order must never change, because new versions of a program continue the checkpoints of old runs.
#[test]
fn the_native_order_never_changes() {
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[9,3,8,1]}\n{\"epoch\":0,\"batch\":1,\"indices\":[0,6,4,5]}\n\
                    {\"epoch\":0,\"batch\":2,\"indices\":[7,2]}\n{\"epoch\":1,\"batch\":0,\"indices\":[2,0,3,9]}\n\
                    {\"epoch\":1,\"batch\":1,\"indices\":[5,4,7,8]}\n{\"epoch\":1,\"batch\":2,\"indices\":[1,6]}\n";
    let arguments = ["--length", "10", "--batch-size", "4", "--shuffle", "--seed", "7", "--epochs", "2"];
    assert_eq!(plan(&arguments), expected);
}

/// The expected batches are two epochs of PyTorch 2.15:
/// `DataLoader(range(20), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(42))`.
#[test]
fn order_torch_is_the_order_of_pytorch() {
    let arguments = ["--length", "20", "--batch-size", "6", "--shuffle", "--seed", "42", "--epochs", "2"];
    let batches = batches(&[&arguments[..], &["--order", "torch"]].concat());
    let expected = [
        vec![16, 15, 2, 9, 0, 19],
        vec![6, 14, 18, 5, 10, 11],
        vec![3, 1, 12, 13, 7, 8],
        vec![4, 17],
        vec![17, 16, 5, 11, 19, 9],
        vec![3, 12, 14, 0, 10, 6],
        vec![18, 2, 15, 4, 7, 13],
        vec![1, 8],
    ];
    assert_eq!(batches, expected);
}

/// The first expected batches are those of PyTorch 2.15 after `set_epoch(0)` and `set_epoch(1)`:
/// `DistributedSampler(range(23), num_replicas=4, rank=2, seed=42)`.
#[test]
fn a_process_loads_its_share() {
    let distributed = ["--batch-size", "6", "--rank", "2", "--world-size", "4"];
    let shuffled = ["--length", "23", "--shuffle", "--order", "torch", "--seed", "42", "--epochs", "2"];
    let expected = [[6, 1, 14, 10, 20, 9], [16, 1, 11, 4, 19, 5]];
    assert_eq!(batches(&[&distributed[..], &shuffled].concat()), expected);
    assert_eq!(batches(&[&distributed[..], &["--length", "10"]].concat()), [[2, 6, 0]]);
    let dropped = ["--length", "10", "--batch-size", "2", "--rank", "2", "--world-size", "4", "--drop-last"];
    assert_eq!(batches(&dropped), [[2, 6]]);
}

#[test]
fn processes_share_the_native_order() {
    let shuffled = ["--length", "8", "--batch-size", "8", "--shuffle", "--seed", "3"];
    let shares: Vec<Vec<usize>> = ["0", "1"]
        .map(|rank| batches(&[&shuffled[..], &["--rank", rank, "--world-size", "2"]].concat()).concat())
        .into();
    let interleaved: Vec<usize> = (0..8).map(|position| shares[position % 2][position / 2]).collect();
    assert_eq!(batches(&shuffled), [interleaved]);
}

#[test]
fn invalid_options_are_refused() {
    let refused = |arguments: &[&str], message: &str| {
        let finished = run(&[&["plan", "--length", "10"], arguments].concat());
        finished.assert_status(2);
        assert_eq!((finished.stdout.as_str(), finished.stderr.trim_end()), ("", message));
    };
    let rank = "loader: rank: invalid rank 4, rank should be in the interval [0, 3] (see `distributed`)";
    refused(&["--rank", "4", "--world-size", "4"], rank);
    refused(&["--rank", "1"], "loader: rank: requires world_size; set both, or leave both out");
    let alone = "loader: world_size: requires rank; set both, or leave both out";
    refused(&["--world-size", "2"], alone);
    refused(&["--batch-size", "0"], "loader: batch_size: 0 samples do not make a batch; use 1 or more");
    let order = "loader: invalid value 'pytorch' for '--order <native|torch|torch-persistent>': `pytorch` is not one of \
                 \"native\", \"torch\" and \"torch-persistent\"; see `loader plan --help`";
    refused(&["--order", "pytorch"], order);
    let draws = run(&["run", PHOTOS, "--samples", "5", "--rank", "0", "--world-size", "2"]);
    assert!(
        draws.assert_status(2).stderr.starts_with("loader: --samples draws from the whole dataset, but rank")
    );
}

#[test]
fn a_run_loads_the_plan() {
    let plain = ["--shuffle", "--seed", "3", "--batch-size", "4", "--drop-last", "--epochs", "2"];
    assert_eq!(assert_run_loads_the_plan(&plain), 4);
    assert_eq!(assert_run_loads_the_plan(&[&plain[..], &["--order", "torch"]].concat()), 4);
    let share = ["--shuffle", "--batch-size", "2", "--epochs", "2", "--rank", "1", "--world-size", "2"];
    assert_eq!(assert_run_loads_the_plan(&share), 6);
}

/// Checks that `loader run` loads the batches that `loader plan` prints. Returns their number.
fn assert_run_loads_the_plan(arguments: &[&str]) -> usize {
    let run = run(&[&["run", PHOTOS, "--json", "--batches", "--size", "16"], arguments].concat());
    run.assert_status(0);
    let mut loaded = run.named("batch");
    for batch in &mut loaded {
        batch.as_object_mut().unwrap().remove("event");
    }
    let planned = plan(&[&["--length", "9"], arguments].concat());
    let planned: Vec<serde_json::Value> =
        planned.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(loaded, planned);
    planned.len()
}

#[test]
fn the_command_line_overrides_the_environment() {
    let mut with_environment = command(&["plan", "--length", "3", "--shuffle=false"]);
    with_environment.env("LOADER_BATCH_SIZE", "2").env("LOADER_SHUFFLE", "true").env("LOADER_ORDER", "torch");
    let finished = Running::start(with_environment).finish();
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[0,1]}\n{\"epoch\":0,\"batch\":1,\"indices\":[2]}\n";
    assert_eq!(finished.assert_status(0).stdout, expected);
}

#[test]
fn a_closed_standard_output_is_not_an_error() {
    let mut running = Running::start(command(&["plan", "--length", "10000000"]));
    let first = running.next_event();
    assert_eq!(first["indices"][0], 0);
    running.close_stdout();
    let finished = running.finish();
    assert_eq!(finished.assert_status(0).stderr, "");
}
