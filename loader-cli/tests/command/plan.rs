//! `loader plan`.

use crate::support::{PHOTOS, Running, command, run};

fn plan(arguments: &[&str]) -> String {
    let finished = run(&[&["plan"], arguments].concat());
    finished.assert_status(0);
    assert_eq!(finished.stderr, "");
    finished.stdout
}

#[test]
fn in_order() {
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[0,1,2,3]}\n{\"epoch\":0,\"batch\":1,\"indices\":[4,5,6,7]}\n\
                    {\"epoch\":0,\"batch\":2,\"indices\":[8,9]}\n";
    assert_eq!(plan(&["--length", "10", "--batch-size", "4"]), expected);
    let full = expected.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!(plan(&["--length", "10", "--batch-size", "4", "--drop-last"]), full);
}

/// An order is for ever: checkpoints of old runs are continued by new programs.
#[test]
fn shuffled() {
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[9,3,8,1]}\n{\"epoch\":0,\"batch\":1,\"indices\":[0,6,4,5]}\n\
                    {\"epoch\":0,\"batch\":2,\"indices\":[7,2]}\n{\"epoch\":1,\"batch\":0,\"indices\":[2,0,3,9]}\n\
                    {\"epoch\":1,\"batch\":1,\"indices\":[5,4,7,8]}\n{\"epoch\":1,\"batch\":2,\"indices\":[1,6]}\n";
    let arguments = ["--length", "10", "--batch-size", "4", "--shuffle", "--seed", "7", "--epochs", "2"];
    assert_eq!(plan(&arguments), expected);
}

#[test]
fn it_is_what_a_run_loads() {
    let arguments = ["--shuffle", "--seed", "3", "--batch-size", "4", "--drop-last", "--epochs", "2"];
    let run = run(&[&["run", PHOTOS, "--json", "--batches", "--size", "16"], &arguments[..]].concat());
    run.assert_status(0);
    let mut loaded = run.named("batch");
    for batch in &mut loaded {
        batch.as_object_mut().unwrap().remove("event");
    }
    let planned = plan(&[&["--length", "9"], &arguments[..]].concat());
    let planned: Vec<serde_json::Value> =
        planned.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(loaded, planned);
    assert_eq!(planned.len(), 4);
}

#[test]
fn the_command_line_goes_over_the_environment() {
    let mut with_environment = command(&["plan", "--length", "3", "--shuffle=false"]);
    with_environment.env("LOADER_BATCH_SIZE", "2").env("LOADER_SHUFFLE", "true");
    let finished = Running::start(with_environment).finish();
    let expected = "{\"epoch\":0,\"batch\":0,\"indices\":[0,1]}\n{\"epoch\":0,\"batch\":1,\"indices\":[2]}\n";
    assert_eq!(finished.assert_status(0).stdout, expected);
}

#[test]
fn nobody_has_to_read_it_all() {
    let mut running = Running::start(command(&["plan", "--length", "10000000"]));
    let first = running.next_event();
    assert_eq!(first["indices"][0], 0);
    running.close_stdout();
    let finished = running.finish();
    assert_eq!(finished.assert_status(0).stderr, "");
}
