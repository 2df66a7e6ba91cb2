//! Writes events in the JSON format of Chrome's trace viewer, which Perfetto reads too.
//!
//! Main is process 0, and worker `w` is process `w + 1`. An arrow leads from a worker's batch to the call of
//! `next` that returned it. Times are microseconds since the loader was built.

use std::io::{self, Write};

use loader_ipc::profile::SpanKind;
use serde::Serialize;

use super::{Kind, Pass, Returned, TraceEvent};

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
    id: Option<u64>,
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
    task: Option<u64>,
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

/// Writes a whole file. Its times begin at `origin`. `lost` is the number of events that are missing.
pub(super) fn write<'e>(
    writer: &mut impl Write,
    events: impl Iterator<Item = &'e TraceEvent> + Clone,
    origin: u64,
    lost: u64,
) -> io::Result<()> {
    writer.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let processes = events.clone().map(process_of).max().unwrap_or(MAIN) + 1;
    for process in 0..processes {
        name_process(writer, process)?;
    }
    for event in events {
        write_event(writer, event, origin)?;
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

fn write_event(writer: &mut impl Write, event: &TraceEvent, origin: u64) -> io::Result<()> {
    let TraceEvent { start, nanos, pass, ref kind } = *event;
    let start = start.saturating_sub(origin);
    let (ts, end) = (micros(start), micros(start.saturating_add(nanos)));
    let epoch = pass.map(|pass| pass.epoch);
    let arguments = || Arguments { epoch, ..Arguments::default() };
    let span = Entry { ph: "X", pid: process_of(event), ts, dur: Some(micros(nanos)), ..Entry::default() };
    match *kind {
        Kind::Next { returned } => {
            let args = Arguments { batch: returned.map(|returned| returned.batch), ..arguments() };
            put(writer, &Entry { name: "next", tid: NEXT, args: Some(args), ..span })?;
            let Some(Returned { task, .. }) = returned else { return Ok(()) };
            let to = Entry { ph: "f", bp: Some("e"), tid: NEXT, pid: MAIN, ts: end, ..Entry::default() };
            put(writer, &arrow(pass, task, to))
        }
        Kind::DecodeBatch { batch } => {
            let args = Arguments { batch: Some(batch), ..arguments() };
            put(writer, &Entry { name: "decode batch", tid: DECODE, args: Some(args), ..span })
        }
        Kind::Ready { batches } => {
            let args = Arguments { batches: Some(limited(batches)), ..Arguments::default() };
            put(writer, &Entry { name: "ready batches", ph: "C", ts, args: Some(args), ..Entry::default() })
        }
        Kind::Load { kind: SpanKind::Batch, task, detail, .. } => {
            let args = Arguments { task: Some(limited(task)), samples: Some(limited(detail)), ..arguments() };
            let pid = span.pid;
            put(writer, &Entry { name: "batch", tid: LOAD, args: Some(args), ..span })?;
            // At the start of the batch: at its end, the arrow would begin at the span of encoding.
            put(writer, &arrow(pass, task, Entry { ph: "s", tid: LOAD, pid, ts, ..Entry::default() }))
        }
        Kind::Load { kind: SpanKind::Sample, task, detail, .. } => {
            let args = Arguments { task: Some(limited(task)), sample: Some(limited(detail)), ..arguments() };
            put(writer, &Entry { name: "sample", tid: LOAD, args: Some(args), ..span })
        }
        Kind::Load { task, .. } => {
            let args = Arguments { task: Some(limited(task)), ..arguments() };
            // It ends with its batch. Viewers drop a span that seems to end later, after they have rounded.
            let dur = Some(micros(nanos.saturating_sub(50)));
            put(writer, &Entry { name: "encode", tid: LOAD, args: Some(args), dur, ..span })
        }
        Kind::Instant { title, ref text, .. } => {
            let args = Arguments { text: Some(text), ..arguments() };
            let tid = if span.pid == MAIN { NEXT } else { LOAD };
            let entry = Entry { name: title, ph: "i", s: Some("p"), tid, args: Some(args), ..span };
            put(writer, &Entry { dur: None, ..entry })
        }
    }
}

/// Returns one end of the arrow from the batch of a task to the call of `next` that returned it.
fn arrow(pass: Option<Pass>, task: u64, entry: Entry<'_>) -> Entry<'_> {
    // Viewers need a number that JSON holds exactly.
    let pass = pass.map_or(0, |pass| pass.number) & ((1 << 21) - 1);
    let id = Some((pass << 32) | (task & u64::from(u32::MAX)));
    Entry { name: "batch", cat: Some("batch"), id, ..entry }
}

/// Limits a number, which a worker that has failed may have written, to what viewers read.
fn limited(number: u64) -> u64 {
    number.min(i64::MAX as u64)
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
        write(&mut bytes, events.iter(), 1_000, 3).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn event(start: u64, nanos: u64, kind: Kind) -> TraceEvent {
        TraceEvent { start, nanos, pass: Some(Pass { number: 7, epoch: 2 }), kind }
    }

    #[test]
    fn spans_arrows_and_names_are_written() {
        let load = |kind, detail| Kind::Load { worker: Some(1), kind, task: 5, detail };
        let (title, text) = ("worker replaced", "killed by \"9\"".to_owned());
        let trace = written(&[
            event(2_000, 2_500, load(SpanKind::Batch, 64)),
            event(2_100, 900, load(SpanKind::Sample, 17)),
            event(4_000, 500, load(SpanKind::Encode, 64)),
            event(1_500, 3_500, Kind::Next { returned: Some(Returned { batch: 4, task: 5 }) }),
            event(5_000, 0, Kind::Ready { batches: 2 }),
            event(5_000, 0, Kind::Instant { worker: Some(1), title, text }),
        ]);
        let entries = trace["traceEvents"].as_array().unwrap();
        let find = |name: &str, ph: &str| {
            let is_it = |entry: &&Value| entry["name"] == name && entry["ph"] == ph;
            entries.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {trace}"))
        };
        let batch = find("batch", "X");
        assert_eq!((&batch["pid"], &batch["ts"], &batch["dur"]), (&2.into(), &1.0.into(), &2.5.into()));
        assert_eq!(batch["args"], serde_json::json!({"epoch": 2, "task": 5, "samples": 64}));
        assert_eq!(find("sample", "X")["args"]["sample"], 17);
        assert_eq!(find("encode", "X")["dur"], 0.45);
        assert_eq!(find("next", "X")["args"], serde_json::json!({"epoch": 2, "batch": 4}));
        let (from, to) = (find("batch", "s"), find("batch", "f"));
        assert_eq!((&from["id"], &to["id"], &to["pid"]), (&(7_u64 << 32 | 5).into(), &from["id"], &0.into()));
        // The arrow begins and ends within the spans.
        assert_eq!((&from["ts"], &to["ts"]), (&1.0.into(), &4.0.into()));
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
