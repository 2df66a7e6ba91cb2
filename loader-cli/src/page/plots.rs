//! The plots of a page, as SVG.

use std::time::Duration;

use loader_core::{EpochReport, Percentiles};
use plotters::{
    coord::{Shift, ranged1d::SegmentValue},
    prelude::*,
};

/// Width of each plot. The page scales it to the width of the window.
const WIDTH: u32 = 860;
const FONT: (&str, i32) = ("sans-serif", 13);
/// Lines and dots. Readable on a light and on a dark page; the page replaces black by the colour of its text.
const ACCENT: RGBColor = RGBColor(0x3b, 0x82, 0xc4);

type Failure = Box<dyn std::error::Error>;
type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Plots the number of batches that were ready, over time; `None` if it was never read.
pub(super) fn ready(report: &EpochReport) -> Option<String> {
    let counts = &report.ready.counts;
    let counts: Vec<_> = counts.iter().map(|(at, batches)| (at.as_secs_f64(), *batches)).collect();
    let last = *counts.last()?;
    let most = counts.iter().map(|(_, batches)| *batches).max()?;
    draw("Line: number of ready batches over the time of the epoch", 200, |root| {
        let end = report.elapsed.as_secs_f64().max(1e-3);
        let mut chart = layout(root).build_cartesian_2d(0.0..end, 0..most + 1)?;
        chart
            .configure_mesh()
            .x_desc("seconds since the start of the epoch")
            .y_desc("batches")
            .label_style(FONT)
            .axis_desc_style(FONT)
            .y_labels(5)
            .max_light_lines(1)
            .draw()?;
        // The number stays until the next reading.
        let steps = counts.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
        chart.draw_series(LineSeries::new(steps.chain([last, (end, last.1)]), ACCENT.stroke_width(2)))?;
        Ok(())
    })
}

/// Plots percentiles of times on a logarithmic axis; `None` without any.
pub(super) fn percentiles(report: &EpochReport) -> Option<String> {
    // The first row is at the bottom.
    let rows = [("samples", &report.times.sample), ("batches", &report.times.batch)];
    let seconds =
        |times: &Percentiles| [times.p50, times.p95, times.p99].map(|time| time.as_secs_f64().max(1e-9));
    let measured = rows.map(|(_, times)| times.as_ref().map(seconds));
    let least = measured.into_iter().flatten().flatten().reduce(f64::min)?;
    let most = measured.into_iter().flatten().flatten().fold(least, f64::max);
    let decades = 10f64.powf(least.log10().floor())..10f64.powf(most.log10().floor() + 1.0);
    draw("Dots: percentiles of the times of batches and samples", 150, |root| {
        let axis = (0..rows.len() - 1).into_segmented();
        let mut chart = layout(root).build_cartesian_2d(decades.log_scale(), axis)?;
        let name = |row: &SegmentValue<usize>| match row {
            SegmentValue::CenterOf(row) => rows.get(*row).map_or("", |(name, _)| name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .x_desc("time (logarithmic): 50 %, 95 % and 99 % of them take at most this long")
            .x_label_formatter(&|seconds| format!("{:.0?}", Duration::from_secs_f64(*seconds)))
            .y_label_formatter(&name)
            .y_labels(rows.len())
            .disable_y_mesh()
            .max_light_lines(1)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()?;
        for (row, times) in measured.iter().enumerate() {
            let Some(times) = times else { continue };
            let at = |seconds| (seconds, SegmentValue::CenterOf(row));
            chart.draw_series(LineSeries::new(times.map(at), ACCENT.stroke_width(3)))?;
            let dots =
                times.iter().zip(["p50", "p95", "p99"]).enumerate().map(|(position, (seconds, name))| {
                    // A label above a time that is close to the one before would cover that label.
                    let is_close = position > 0 && *seconds < times[position - 1] * 1.15;
                    let label = if is_close { "" } else { name };
                    EmptyElement::at(at(*seconds))
                        + Circle::new((0, 0), 6, ACCENT.filled())
                        + Text::new(label, (-10, -22), FONT)
                });
            chart.draw_series(dots)?;
        }
        Ok(())
    })
}

fn layout<'a, 'b>(root: &'a Root<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(root);
    chart.margin(8).margin_right(16).x_label_area_size(38).y_label_area_size(78);
    chart
}

/// Draws a plot of this height, which `label` describes to a screen reader; `None` if that fails.
fn draw(label: &str, height: u32, plot: impl FnOnce(&Root<'_>) -> Result<(), Failure>) -> Option<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        plot(&root).ok()?;
        root.present().ok()?;
    }
    // Inside of HTML, SVG needs no name space, and the page names no address. The style sheet sets the size.
    let label = format!(" role=\"img\" aria-label=\"{label}\"");
    let svg = svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", &label);
    Some(svg.replacen(&format!("width=\"{WIDTH}\" height=\"{height}\" "), "", 1))
}
