//! The HTML of a page. It needs no other file and no script.

use std::time::Duration;

use loader_core::{Advice, EpochReport, Percentiles, Phase, PhaseTimes};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::{MAX_LISTED, Messages, RunRecord, plots};

/// Maximum number of epochs with plots, so that the page of a long run stays small.
const MAX_PLOTTED: usize = 8;

/// Returns the page of a run. `end` says how it ended.
pub(super) fn page(run: &RunRecord, end: &str) -> String {
    let started = humantime::format_rfc3339_seconds(run.started);
    let target = run.settings.pointer("/dataset/path").and_then(Value::as_str);
    let title = target.map_or_else(|| "loader run".to_owned(), |target| format!("loader run {target}"));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                h1 { (title) }
                p.note { "Started " (started) ", version " (env!("CARGO_PKG_VERSION")) ". " (end) }
                (verdict(run.epochs.last()))
                (epochs(&run.epochs))
                @for report in run.epochs.iter().skip(run.epochs.len().saturating_sub(MAX_PLOTTED)) { (epoch(report)) }
                (decisions(&run.epochs))
                (messages("Restarts of workers", &run.restarts))
                (messages("Errors", &run.errors))
                (bad_samples(&run.epochs))
                (settings(&run.settings))
            }
        }
    };
    page.into_string()
}

/// The bottleneck of the last epoch, with what more workers would give.
fn verdict(report: Option<&EpochReport>) -> Markup {
    let Some(report) = report else { return html! { p.verdict { "The run ended before its first batch." } } };
    let advice = report.advice();
    let class = match advice {
        None => "",
        Some(Advice::KeepsUp { .. }) => "keeps-up",
        Some(_) => "bottleneck",
    };
    let text = advice.map_or_else(
        || "There are too few batches to tell what the bottleneck is.".to_owned(),
        |advice| format!("{advice}."),
    );
    html! {
        div class={ "verdict " (class) } {
            p { strong { "Bottleneck of epoch " (report.epoch) ": " } (text) }
            @if !matches!(advice, Some(Advice::CpusTaken { .. } | Advice::NoWorkers { .. })) { (prediction(report)) }
        }
    }
}

fn prediction(report: &EpochReport) -> Markup {
    let (Some(figures), true) = (report.figures, report.num_workers > 0) else { return html! {} };
    let (cpus, now) = (report.cpus, report.num_workers);
    let predicted = |workers| format!("{:.1}", figures.predicted_rate(workers, cpus));
    html! {
        p.note {
            "Number of workers: " (now) ". Measured: " (format!("{:.1}", figures.batches_per_second))
            " batches/s. Predicted maximum, with the number of CPUs that the workers may use (" (cpus) "): "
            @for workers in [now.div_ceil(2), 2 * now, 4 * now] {
                (predicted(workers)) " with " (workers) @if workers != 4 * now { ", " }
            }
            "."
        }
    }
}

fn epochs(epochs: &[EpochReport]) -> Markup {
    let has_fill = epochs.iter().any(|report| report.fill.is_some());
    html! {
        h2 { "Epochs" }
        p.note {
            "Waiting: time after the first batch that the program waited, and its share. Ready: mean number of batches that were \
             loaded and not asked for yet. MB/s: millions of bytes of shared memory that the batches took, divided by the time of the epoch."
            @if has_fill { " Fill: share of the tokens of the batches that are not padding." }
        }
        div.wide { table {
            thead { tr {
                @for name in ["epoch", "batches", "samples", "time", "samples/s", "MB/s"] { th scope="col" { (name) } }
                @if has_fill { th scope="col" { "fill" } }
                @for name in ["first batch", "waiting", "share", "ready", "restarts", "errors", "bad samples"] { th scope="col" { (name) } }
            } }
            tbody { @for report in epochs {
                @let steady = report.elapsed.saturating_sub(report.first_batch.unwrap_or_default());
                tr {
                    th scope="row" { (report.epoch) }
                    td { (report.batches) }
                    td { (report.samples) }
                    td { (time(report.elapsed)) }
                    td { (format!("{:.0}", report.samples_per_second())) }
                    td { (megabytes_per_second(report)) }
                    @if has_fill { td { (report.fill.map(|fill| format!("{:.1} %", 100.0 * fill.ratio())).unwrap_or_default()) } }
                    td { (report.first_batch.map(time).unwrap_or_default()) }
                    td { (time(report.waiting)) }
                    td { (percent(report.waiting, steady)) }
                    td { (report.ready.mean().map(|mean| format!("{mean:.1}")).unwrap_or_default()) }
                    td { (report.restarts) }
                    td { (report.errors) }
                    td { (report.bad_samples.len()) }
                }
            } }
        } }
        @if epochs.len() > MAX_PLOTTED { p.note { "The last " (MAX_PLOTTED) " epochs follow in detail." } }
    }
}

/// Returns the rate at which batches came through shared memory; empty without workers.
fn megabytes_per_second(report: &EpochReport) -> String {
    let rate = report.bytes as f64 / 1e6 / report.elapsed.as_secs_f64();
    if report.bytes == 0 { String::new() } else { format!("{rate:.1}") }
}

fn epoch(report: &EpochReport) -> Markup {
    html! {
        h2 { "Epoch " (report.epoch) }
        @if let Some(plot) = plots::ready(report) {
            figure {
                figcaption { "Batches that were ready, over time" }
                (PreEscaped(plot))
            }
        }
        (phases(report))
        @if let Some(plot) = plots::percentiles(report) {
            figure {
                figcaption { "Times of batches and samples" }
                (PreEscaped(plot))
            }
        }
        div.columns { (times(report)) (slowest(report)) }
        (workers(report))
    }
}

fn phases(report: &EpochReport) -> Markup {
    let work = work(report);
    let shares = report.times.phases.shares();
    if shares.is_empty() {
        return html! {};
    }
    let longest = work.iter().map(|(_, _, busy)| *busy).max().unwrap_or_default().max(report.elapsed);
    html! {
        figure {
            figcaption { "Where the time of loading went" }
            ul.legend { @for (phase, share) in &shares {
                li { span style={ "background: " (color(*phase)) } {} (phase.name()) " " (format!("{:.1} %", 100.0 * share)) }
            } }
            div.bars { @for (name, phases, busy) in &work {
                span { (name) }
                div { @for phase in Phase::ALL {
                    @let width = 100.0 * share_of(phases, phase) * ratio(*busy, longest);
                    i style={ "background: " (color(phase)) "; width: " (format!("{width:.2}")) "%" } {}
                } }
                span { (time(*busy)) }
            } }
            p.note {
                "Each bar is the time spent loading batches, out of the " (time(longest)) " of the epoch. The phases were measured in "
                (report.times.profiled_batches) " batches."
                @if let Some(decode) = report.main_decode { " Main decoded a batch in " (time(decode)) " on average." }
            }
        }
    }
}

/// Returns the colour of a phase, which is readable on a light and on a dark page.
fn color(phase: Phase) -> &'static str {
    match phase {
        Phase::Fetch => "#8a8f98",
        Phase::Read => "#3b82c4",
        Phase::Decode => "#e08a1e",
        Phase::Transform => "#2f9e6e",
        Phase::Collate => "#b05fb5",
        _ => "#c94a4a",
    }
}

/// Returns what loaded the batches of an epoch, the workers or main: its name, the phases, and the time spent
/// loading.
fn work(report: &EpochReport) -> Vec<(String, PhaseTimes, Duration)> {
    let workers = report.workers.iter().enumerate();
    let mut work: Vec<_> =
        workers.map(|(number, worker)| (format!("worker {number}"), worker.phases, worker.busy)).collect();
    if work.is_empty() {
        let loading = report.waiting + report.first_batch.unwrap_or_default();
        work.push(("main".to_owned(), report.times.phases, loading));
    }
    work
}

fn share_of(phases: &PhaseTimes, phase: Phase) -> f64 {
    phases.shares().iter().find(|(of, _)| *of == phase).map_or(0.0, |(_, share)| *share)
}

fn times(report: &EpochReport) -> Markup {
    let rows = [("batches", &report.times.batch), ("samples", &report.times.sample)];
    let row = |name: &str, times: &Percentiles| {
        html! { tr {
            th.text scope="row" { (name) }
            td { (times.count) } td { (time(times.p50)) } td { (time(times.p95)) } td { (time(times.p99)) }
        } }
    };
    html! { div.wide { table {
        caption { "Percentiles, each at most 13 % too large or too small" }
        thead { tr { th.text scope="col" { "times of" } @for name in ["measured", "p50", "p95", "p99"] { th scope="col" { (name) } } } }
        tbody { @for (name, times) in rows { @if let Some(times) = times { (row(name, times)) } } }
    } } }
}

fn slowest(report: &EpochReport) -> Markup {
    if report.times.slowest.is_empty() {
        return html! {};
    }
    let has_shards = report.times.slowest.iter().any(|sample| sample.shard.is_some());
    html! { div.wide { table {
        caption { "Slowest samples" }
        thead { tr {
            th scope="col" { "index" }
            @if has_shards { th scope="col" { "shard" } }
            th scope="col" { "batch" } th scope="col" { "time" }
        } }
        tbody { @for sample in &report.times.slowest { tr {
            td { (sample.index) }
            @if has_shards { td { @if let Some(shard) = sample.shard { (shard) } } }
            td { (sample.batch.map_or("-".to_owned(), |batch| batch.to_string())) } td { (time(sample.time)) }
        } } }
    } } }
}

fn workers(report: &EpochReport) -> Markup {
    if report.workers.is_empty() {
        return html! {};
    }
    html! { div.wide { table {
        caption { "Workers. Busy: share of the epoch; on a CPU and waiting for a CPU: shares of the busy time" }
        thead { tr { @for name in ["worker", "batches", "samples", "busy", "busy %", "CPU", "on a CPU %", "waiting for a CPU %", "page faults"] { th scope="col" { (name) } } } }
        tbody { @for (number, worker) in report.workers.iter().enumerate() { tr {
            th scope="row" { (number) }
            td { (worker.batches) } td { (worker.samples) }
            td { (time(worker.busy)) } td { (percent(worker.busy, report.elapsed)) }
            td { (time(worker.cpu)) } td { (percent(worker.cpu, worker.busy)) }
            td { (percent(worker.cpu_wait, worker.busy)) }
            td { (worker.page_faults) }
        } } }
    } } }
}

fn decisions(epochs: &[EpochReport]) -> Markup {
    let decisions: Vec<_> =
        epochs.iter().flat_map(|report| report.tuning.iter().map(|one| (report.epoch, one))).collect();
    html! { @if !decisions.is_empty() {
        h2 { "Decisions about workers" }
        ul { @for (epoch, decision) in decisions { li { "epoch " (epoch) ", " (decision) } } }
    } }
}

fn messages(title: &str, messages: &Messages) -> Markup {
    html! { @if !messages.listed.is_empty() {
        h2 { (title) }
        ul { @for message in &messages.listed { li { (message) } } }
        @if messages.left_out > 0 { p.note { "and " (messages.left_out) " more" } }
    } }
}

fn bad_samples(epochs: &[EpochReport]) -> Markup {
    let all =
        || epochs.iter().flat_map(|report| report.bad_samples.iter().map(|sample| (report.epoch, sample)));
    let left_out = all().skip(MAX_LISTED).count();
    html! { @if all().next().is_some() {
        h2 { "Bad samples" }
        ul { @for (epoch, sample) in all().take(MAX_LISTED) { li { "epoch " (epoch) ": " (sample) } } }
        @if left_out > 0 { p.note { "and " (left_out) " more" } }
    } }
}

/// A table of the settings for each of their sections.
fn settings(settings: &Value) -> Markup {
    let sections = settings.as_object().into_iter().flatten();
    html! {
        h2 { "Settings" }
        @for (section, values) in sections {
            h3 { "[" (section) "]" }
            div.wide { table { tbody { @for (key, value) in values.as_object().into_iter().flatten() {
                tr { th.text scope="row" { code { (key) } } td.text { code { (value) } } }
            } } } }
        }
    }
}

fn percent(part: Duration, whole: Duration) -> String {
    format!("{:.0} %", 100.0 * ratio(part, whole))
}

/// Returns the part's share of the whole, from 0 to 1.
fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { (part.as_secs_f64() / whole.as_secs_f64()).min(1.0) }
}

/// Formats a time with three digits, such as `1.50 s` or `12.3 ms`.
fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match seconds {
        1.0.. => (seconds, "s"),
        1e-3.. => (1e3 * seconds, "ms"),
        _ => (1e6 * seconds, "µs"),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_three_digits() {
        let of = |seconds| time(Duration::from_secs_f64(seconds));
        assert_eq!([of(90.0), of(1.5), of(0.0123)], ["90.0 s", "1.50 s", "12.3 ms"]);
        assert_eq!([of(0.123), of(0.000_004), of(0.0)], ["123 ms", "4.00 µs", "0.00 µs"]);
    }
}
