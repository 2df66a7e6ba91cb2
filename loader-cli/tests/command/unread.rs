//! Epochs of `loader run` that an error cuts short: the samples behind it are left for a resumed run.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Finished, run};

/// Lines before the line that ends workers: two batches. They are in the second shard.
const BEFORE: usize = 8;
/// Batches of an epoch that is cut short: those of the first shard, those before the line, and the one with the line.
const CUT_SHORT: usize = 10 + BEFORE / 4 + 1;

/// A stream of two files. The second one has a line of 48 MB, so that a worker with [`LIMITED`] memory aborts.
struct Stream {
    folder: TempDir,
    config: PathBuf,
}

const LIMITED: [&str; 2] = ["--worker-memory-limit", "16MiB"];

impl Stream {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let lines = |count: usize| "{\"x\": 1, \"text\": \"short\"}\n".repeat(count);
        fs::write(data.join("a.jsonl"), lines(40)).unwrap();
        let long = format!("{{\"x\": 1, \"text\": \"{}\"}}\n", "a".repeat(48_000_000));
        fs::write(data.join("b.jsonl"), [lines(BEFORE), long, lines(8)].concat()).unwrap();
        let config = folder.path().join("run.toml");
        let text = "[dataset]\nkind = \"json-lines-stream\"\npath = \"data\"\nfields = [\"x\"]\nblock_bytes = 100000000\n\
                    [loader]\nbatch_size = 4\nshards = 2\nnum_workers = 1\n";
        fs::write(&config, text).unwrap();
        Self { folder, config }
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        run(&[&["run", self.config.to_str().unwrap(), "--json", "--epochs", "2"], arguments].concat())
    }

    /// Returns a path in the folder.
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Returns the kinds of the errors.
fn errors(finished: &Finished) -> Vec<String> {
    finished.named("error").iter().map(|error| error["kind"].as_str().unwrap().to_owned()).collect()
}

/// Returns the number of samples of each epoch.
fn samples(finished: &Finished) -> Vec<Value> {
    finished.named("epoch").iter().map(|epoch| epoch["samples"].clone()).collect()
}

fn epoch_of(state: &str) -> Value {
    serde_json::from_slice::<Value>(&fs::read(state).unwrap()).unwrap()["epoch"].clone()
}

#[test]
fn a_run_that_saves_no_state_goes_on_to_the_next_epoch() {
    let finished = Stream::new().run(&LIMITED);
    finished.assert_status(1);
    assert_eq!(errors(&finished), ["BatchGivenUp", "BatchGivenUp"], "{}", finished.stdout);
    assert_eq!(samples(&finished), [json!(40 + BEFORE), json!(40 + BEFORE)]);
    for epoch in 0..2 {
        let warning = format!("epoch {epoch} ended before all of its data was read");
        assert_eq!(finished.stderr.matches(&warning).count(), 1, "{}", finished.stderr);
    }
}

#[test]
fn a_saved_state_stays_in_the_epoch_until_all_of_it_is_read() {
    let stream = Stream::new();
    let (first, second) = (stream.path("first.json"), stream.path("second.json"));
    let ended = stream.run(&[&LIMITED[..], &["--save-state", &first]].concat());
    ended.assert_status(1);
    assert_eq!(errors(&ended), ["BatchGivenUp", "EpochNotRead"], "{}", ended.stdout);
    assert_eq!((samples(&ended), epoch_of(&first)), (vec![json!(40 + BEFORE)], json!(0)));
    // The cause is still there: the run ends again, and loses nothing.
    let again = stream.run(&[&LIMITED[..], &["--resume", &first, "--save-state", &second]].concat());
    again.assert_status(1);
    assert_eq!(errors(&again), ["BatchGivenUp", "EpochNotRead"], "{}", again.stdout);
    assert_eq!((samples(&again), epoch_of(&second)), (vec![json!(0)], json!(0)));
    let rest = stream.run(&["--resume", &second]);
    rest.assert_status(0);
    assert_eq!(samples(&rest), [json!(1 + 8), json!(40 + BEFORE + 1 + 8)]);
}

#[test]
fn a_run_that_stops_with_a_failed_batch_fails() {
    let stream = Stream::new();
    let (state, stop) = (stream.path("state.json"), CUT_SHORT.to_string());
    let stopped = stream.run(&[&LIMITED[..], &["--save-state", &state, "--stop-after", &stop]].concat());
    stopped.assert_status(1);
    assert_eq!(errors(&stopped), ["BatchGivenUp"], "{}", stopped.stdout);
    assert_eq!(epoch_of(&state), json!(0));
    let rest = stream.run(&["--resume", &state]);
    rest.assert_status(0);
    assert_eq!(samples(&rest)[0], json!(1 + 8));
}

/// Rank 1 reads the second file, and stays in its epoch. Rank 0 goes on.
#[test]
fn ranks_in_different_epochs_resume_each_from_its_own_state() {
    let stream = Stream::new();
    let states = stream.path("rank-{rank}.json");
    let run_rank = |rank: &str, arguments: &[&str]| {
        let ranks = ["--rank", rank, "--world-size", "2", "--shards", "1"];
        stream.run(&[&ranks[..], arguments].concat())
    };
    run_rank("0", &["--save-state", &states, "--stop-after", "12"]).assert_status(0);
    let ended = run_rank("1", &[&LIMITED[..], &["--save-state", &states]].concat());
    assert_eq!(errors(&ended), ["BatchGivenUp", "EpochNotRead"], "{}", ended.stdout);
    let files = [stream.path("rank-0.json"), stream.path("rank-1.json")];
    assert_eq!(files.each_ref().map(|file| epoch_of(file)), [json!(1), json!(0)]);
    let merged = stream.run(&["--shards", "2", "--resume", &files[0], &files[1]]);
    merged.assert_status(2);
    assert_eq!(errors(&merged), ["StatesNotMerged"], "{}", merged.stdout);
    let advice = "resume each rank with its own state, and with the same number of ranks";
    assert!(merged.stderr.contains(advice), "{}", merged.stderr);
    assert_eq!(samples(&run_rank("0", &["--resume", &states])), [json!(40 - 2 * 4)]);
    assert_eq!(samples(&run_rank("1", &["--resume", &states])), [json!(1 + 8), json!(BEFORE + 1 + 8)]);
}
