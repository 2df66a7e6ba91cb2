//! Writes events in the JSON format of Chrome's trace viewer, which Perfetto reads too.
//!
//! Main is process 0, and worker `w` is process `w + 1`. An arrow leads from a worker's batch to the call of
//! `next` that returned it. Times are microseconds on the monotonic clock, which all processes share.

use std::io::{self, Write};

use loader_ipc::profile::SpanKind;
use serde::Serialize;

use super::{Kind, TraceEvent};

/// Process of main.
const MAIN: usize = 0;
// Tracks of a process.
const NEXT: u32 = 0;
const DECODE: u32 = 1;
const LOAD: u32 = 2;

/// An entry of `traceEvents`. Fields that are `None` are left out.
#[derive(Debug, Default, Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'a str,
    pid: usize,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    /// With `"e"`, an arrow ends at the span that encloses its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'a str>,
    /// Scope of an instant: `"p"` for a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Arguments<'a>>,
}

#[derive(Debug, Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// Writes a whole file. `lost` is the number of events that are missing.
pub(super) fn write<'e>(
    writer: &mut impl Write,
    events: impl Iterator<Item = &'e TraceEvent> + Clone,
    lost: u64,
) -> io::Result<()> {
    writer.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let processes = events.clone().map(process_of).max().unwrap_or(MAIN) + 1;
    for process in 0..processes {
        name_process(writer, process)?;
    }
    for event in events {
        write_event(writer, event)?;
    }
    let args = Arguments { lost: Some(lost), ..Arguments::default() };
    let end = Entry { name: "events lost", ph: "M", args: Some(args), ..Entry::default() };
    serde_json::to_writer(&mut *writer, &end)?;
    writer.write_all(b"\n]}\n")
}

fn process_of(event: &TraceEvent) -> usize {
    match event.kind {
        Kind::Load { worker: Some(worker), .. } | Kind::Instant { worker: Some(worker), .. } => worker + 1,
        _ => MAIN,
    }
}

fn name_process(writer: &mut impl Write, process: usize) -> io::Result<()> {
    let name = if process == MAIN { "main".to_owned() } else { format!("worker {}", process - 1) };
    let of_process = |name, args| Entry { name, ph: "M", pid: process, args: Some(args), ..Entry::default() };
    put(writer, &of_process("process_name", Arguments { name: Some(&name), ..Arguments::default() }))?;
    let order = Arguments { sort_index: Some(process), ..Arguments::default() };
    put(writer, &of_process("process_sort_index", order))?;
    let tracks = [(NEXT, "next"), (DECODE, "decode batch"), (LOAD, "load")];
    for (tid, track) in tracks.into_iter().filter(|(tid, _)| process == MAIN || *tid == LOAD) {
        let args = Arguments { name: Some(track), ..Arguments::default() };
        put(writer, &Entry { tid, ..of_process("thread_name", args) })?;
    }
    Ok(())
}

fn write_event(writer: &mut impl Write, event: &TraceEvent) -> io::Result<()> {
    let TraceEvent { start, nanos, epoch, ref kind } = *event;
    let (ts, end) = (micros(start), micros(start.saturating_add(nanos)));
    let of = |batch| Arguments { epoch: Some(epoch), batch: Some(batch), ..Arguments::default() };
    let span = Entry { ph: "X", pid: process_of(event), ts, dur: Some(micros(nanos)), ..Entry::default() };
    let arrow = |batch, entry: Entry<'_>, writer: &mut _| {
        let id = format!("{epoch}-{batch}");
        put(writer, &Entry { name: "batch", cat: Some("batch"), id: Some(&id), ts: end, ..entry })
    };
    match *kind {
        Kind::Next { batch } => {
            let args = Arguments { epoch: Some(epoch), batch, ..Arguments::default() };
            put(writer, &Entry { name: "next", tid: NEXT, args: Some(args), ..span })?;
            let Some(batch) = batch else { return Ok(()) };
            arrow(batch, Entry { ph: "f", bp: Some("e"), tid: NEXT, pid: MAIN, ..Entry::default() }, writer)
        }
        Kind::DecodeBatch { batch } => {
            put(writer, &Entry { name: "decode batch", tid: DECODE, args: Some(of(batch)), ..span })
        }
        Kind::Ready { batches } => {
            let args = Arguments { batches: Some(batches), ..Arguments::default() };
            put(writer, &Entry { name: "ready batches", ph: "C", ts, args: Some(args), ..Entry::default() })
        }
        Kind::Load { kind: SpanKind::Batch, batch, detail, .. } => {
            let args = Arguments { samples: Some(detail), ..of(batch) };
            let pid = span.pid;
            put(writer, &Entry { name: "batch", tid: LOAD, args: Some(args), ..span })?;
            arrow(batch, Entry { ph: "s", tid: LOAD, pid, ..Entry::default() }, writer)
        }
        Kind::Load { kind: SpanKind::Sample, batch, detail, .. } => {
            let args = Arguments { sample: Some(detail), ..of(batch) };
            put(writer, &Entry { name: "sample", tid: LOAD, args: Some(args), ..span })
        }
        Kind::Load { batch, .. } => {
            put(writer, &Entry { name: "encode", tid: LOAD, args: Some(of(batch)), ..span })
        }
        Kind::Instant { title, ref text, .. } => {
            let args = Arguments { epoch: Some(epoch), text: Some(text), ..Arguments::default() };
            let tid = if span.pid == MAIN { NEXT } else { LOAD };
            let entry = Entry { name: title, ph: "i", s: Some("p"), tid, args: Some(args), ..span };
            put(writer, &Entry { dur: None, ..entry })
        }
    }
}

fn put(writer: &mut impl Write, entry: &Entry<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, entry)?;
    writer.write_all(b",\n")
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn written(events: &[TraceEvent]) -> Value {
        let mut bytes = Vec::new();
        write(&mut bytes, events.iter(), 3).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn event(start: u64, nanos: u64, kind: Kind) -> TraceEvent {
        TraceEvent { start, nanos, epoch: 2, kind }
    }

    #[test]
    fn spans_arrows_and_names_are_written() {
        let load = |kind, detail| Kind::Load { worker: Some(1), kind, batch: 5, detail };
        let note =
            Kind::Instant { worker: Some(1), title: "worker replaced", text: "killed by \"9\"".to_owned() };
        let trace = written(&[
            event(1_000, 2_500, load(SpanKind::Batch, 64)),
            event(1_100, 900, load(SpanKind::Sample, 17)),
            event(500, 3_500, Kind::Next { batch: Some(5) }),
            event(4_000, 0, Kind::Ready { batches: 2 }),
            event(4_000, 0, note),
        ]);
        let entries = trace["traceEvents"].as_array().unwrap();
        let find = |name: &str, ph: &str| {
            let is_it = |entry: &&Value| entry["name"] == name && entry["ph"] == ph;
            entries.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {trace}"))
        };
        let batch = find("batch", "X");
        assert_eq!((&batch["pid"], &batch["ts"], &batch["dur"]), (&2.into(), &1.0.into(), &2.5.into()));
        assert_eq!(batch["args"], serde_json::json!({"epoch": 2, "batch": 5, "samples": 64}));
        assert_eq!(find("sample", "X")["args"]["sample"], 17);
        let (from, to) = (find("batch", "s"), find("batch", "f"));
        assert_eq!((&from["id"], &to["id"], &to["pid"]), (&"2-5".into(), &"2-5".into(), &0.into()));
        // The arrow begins and ends within the spans.
        assert_eq!((&from["ts"], &to["ts"]), (&3.5.into(), &4.0.into()));
        assert_eq!(find("ready batches", "C")["args"]["batches"], 2);
        assert_eq!(find("worker replaced", "i")["args"]["text"], "killed by \"9\"");
        let names = entries.iter().filter(|entry| entry["name"] == "process_name");
        let names: Vec<_> = names.map(|entry| entry["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["main", "worker 0", "worker 1"]);
        assert_eq!(entries.last().unwrap()["args"]["lost"], 3);
    }

    #[test]
    fn a_trace_without_events_is_valid() {
        assert!(written(&[])["traceEvents"].is_array());
    }
}
