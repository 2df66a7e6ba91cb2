//! Shows what a sweep has measured.

use std::fmt::Write;

use super::search::{Choice, Measured, Setting, Skipped};

/// Width of the longest bar, in characters.
const BAR: usize = 24;

/// Returns the table, one line per setting.
pub(super) fn table(measured: &[Measured], chosen: Option<Setting>) -> String {
    let mut text =
        format!("{:>7}  {:>15}  {:>11}  {:>19}\n", "workers", "prefetch_factor", "samples/s", "range");
    let max = measured.iter().map(Measured::rate).fold(0.0, f64::max);
    for row in measured {
        let Setting { num_workers, prefetch_factor } = row.setting;
        let prefetch_factor = prefetch_factor.map_or_else(|| "-".to_owned(), |factor| factor.to_string());
        let range = match row.rounds.len() {
            0 | 1 => "1 interval".to_owned(),
            _ => {
                let low = row.rounds.iter().copied().fold(f64::MAX, f64::min);
                let high = row.rounds.iter().copied().fold(0.0, f64::max);
                format!("{} to {}", number(low), number(high))
            }
        };
        let mark = if Some(row.setting) == chosen { " chosen" } else { "" };
        let (rate, bar) = (number(row.rate()), bar(row.rate() / max));
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{num_workers:>7}  {prefetch_factor:>15}  {rate:>11}  {range:>19}  {bar}{mark}");
    }
    text
}

/// Returns the lines about the numbers of workers that were not measured, one for each reason.
pub(super) fn not_measured(skipped: &[(usize, Skipped)]) -> Vec<String> {
    let groups = skipped.chunk_by(|(_, a), (_, b)| match (a, b) {
        // The first number that is enough, and the highest prediction, hold for the whole group.
        (Skipped::Enough(_), Skipped::Enough(_)) | (Skipped::TooSlow(_), Skipped::TooSlow(_)) => true,
        _ => a == b,
    });
    let line = |group: &[(usize, Skipped)]| {
        let numbers: Vec<String> = group.iter().map(|(workers, _)| workers.to_string()).collect();
        let workers = format!("{} worker{}", numbers.join(", "), if numbers == ["1"] { "" } else { "s" });
        let reason = match (&group[0].1, &group[group.len() - 1].1) {
            (Skipped::NeedsWorkers(keys), _) => format!("{} needs workers", keys.join(", ")),
            (Skipped::Enough(1), _) => "1 worker is predicted to be enough".to_owned(),
            (Skipped::Enough(enough), _) => format!("{enough} workers are predicted to be enough"),
            (_, Skipped::TooSlow(rate)) => format!("at most {} samples/s are predicted", number(*rate)),
            (Skipped::Memory(room), _) => format!("the memory has room for about {room}"),
            _ => "the time was over; give a longer --time".to_owned(),
        };
        format!("not measured: {workers} ({reason})")
    };
    groups.map(line).collect()
}

/// Returns the lines about the winner.
pub(super) fn choice(choice: &Choice) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some((fastest, faster, noise)) = choice.over {
        let rule = match fastest.num_workers {
            0 => "without --step, 0 workers win only if they are clearly faster",
            _ => "the setting with fewer workers or fewer batches ahead wins",
        };
        let (faster, noise) = (100.0 * faster, 100.0 * noise);
        lines.push(format!(
            "the fastest setting, {fastest}, is faster by {faster:.1} %, which is within the noise of {noise:.1} %; \
             {rule}"
        ));
    }
    if let Some(noise) = choice.unsteady {
        lines.push(format!(
            "the rates vary, with a noise of {:.0} %: the choice may be wrong; measure again while no other program \
             uses the machine, or with a longer --time",
            100.0 * noise
        ));
    }
    let gain = choice.gain.map(|gain| format!(", {gain:.2} times the rate of the config before"));
    lines.push(format!("{}: {} samples/s{}", choice.setting, number(choice.rate), gain.unwrap_or_default()));
    lines
}

/// Formats a rate with three digits or more.
fn number(rate: f64) -> String {
    let digits = match rate {
        rate if rate >= 100.0 => 0,
        rate if rate >= 10.0 => 1,
        _ => 2,
    };
    format!("{rate:.digits$}")
}

/// Draws a bar for a share from 0 to 1, to an eighth of a character.
fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * (8 * BAR) as f64).round() as usize;
    "█".repeat(eighths / 8) + PARTS[eighths % 8]
}
