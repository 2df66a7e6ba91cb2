//! The pictures of docs/pictures: what the README's commands show on a terminal.

use std::{env, fs, path::Path, process::Command};

use crate::{
    support::Running,
    terminal::{ROWS, terminal},
};

const COLUMNS: u16 = 116;
/// Width and height of a character on the picture, in pixels.
const WIDTH: f64 = 7.8;
const HEIGHT: f64 = 18.0;

/// To make the pictures again, run this test with `UPDATE_DOCS=1` and `LOADER=../target/release/loader`.
#[test]
#[ignore = "takes half a minute; run by .ci/long page"]
fn the_pictures_of_the_documents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let job =
        "run loader-data/photos --samples 2000 --batch-size 64 --num-workers 4 --epochs 2 --seed 7 --digest";
    let loader = env::var_os("LOADER").unwrap_or_else(|| env!("CARGO_BIN_EXE_loader").into());
    let loader = fs::canonicalize(loader).unwrap();
    let mut run = Command::new(&loader);
    run.args(job.split(' '));
    let screens = screens_of(run, root);
    // The run in its second epoch, after its first batch, with the bottleneck below the workers.
    let is_live = |screen: &&String| {
        let (_, below) = screen.rsplit_once("worker 3: ").unwrap_or_default();
        screen.contains("epoch 1 of 2 [") && screen.contains(" samples/s, ") && below.lines().count() > 1
    };
    let live: Vec<_> = screens.iter().filter(is_live).collect();
    let command = format!("$ loader {job}");
    let middle = live.get(live.len() / 2).unwrap_or_else(|| panic!("no live view in {screens:#?}"));
    draw(root, "live-view.svg", &[&command, middle.as_str()].join("\n"));

    let script = "examples/same-digest.sh";
    let mut same_digest = Command::new(root.join(script));
    same_digest.env("LOADER", loader);
    let screens = screens_of(same_digest, root);
    let left = screens.last().unwrap();
    assert_eq!(left.matches("sample digest").count(), 4, "{left}");
    draw(root, "same-digest.svg", &format!("$ {script}\n{left}"));
}

/// Runs a program in the folder `root` on a terminal, and returns each screen that was seen.
fn screens_of(mut program: Command, root: &Path) -> Vec<String> {
    let (slave, seen) = terminal(COLUMNS);
    program.env("TERM", "xterm").current_dir(root).stdout(slave.try_clone().unwrap()).stderr(slave);
    Running::start(program).finish().assert_status(0);
    seen.join().unwrap()
}

/// Draws the text of a screen. Writes the picture with `UPDATE_DOCS=1`, and otherwise checks that the present one shows
/// what every run shows.
fn draw(root: &Path, name: &str, screen: &str) {
    let lines: Vec<_> = screen.lines().collect();
    assert!(lines.len() > 2 && lines.len() <= usize::from(ROWS) + 1, "{screen}");
    let [width, height] = [f64::from(COLUMNS) * WIDTH + 24.0, lines.len() as f64 * HEIGHT + 24.0];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" \
         font-size=\"13\" fill=\"#d6dae0\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#171a1f\"/>\n"
    );
    for (row, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let line = line.replace('&', "&amp;").replace('<', "&lt;");
        let (y, length) = (row as f64 * HEIGHT + 25.0, line.chars().count() as f64 * WIDTH);
        svg += &format!(
            "<text x=\"12\" y=\"{y:.0}\" textLength=\"{length:.0}\" lengthAdjust=\"spacingAndGlyphs\" \
             xml:space=\"preserve\">{line}</text>\n"
        );
    }
    svg += "</svg>\n";
    let path = root.join("docs/pictures").join(name);
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, svg).unwrap();
    } else {
        let picture = fs::read_to_string(&path).unwrap();
        let shown: Vec<_> = picture.lines().filter_map(text_of).collect();
        let why = format!("{} is out of date: run this test with UPDATE_DOCS=1", path.display());
        assert_eq!(without_figures(&shown.join("\n")), without_figures(screen), "{why}");
    }
}

/// Returns the text of a line of a picture.
fn text_of(line: &str) -> Option<String> {
    let (_, text) = line.strip_prefix("<text ")?.strip_suffix("</text>")?.split_once('>')?;
    Some(text.replace("&lt;", "<").replace("&amp;", "&"))
}

/// Returns what every run shows: the command, the digests, and the live view without its figures.
fn without_figures(screen: &str) -> Vec<String> {
    let without_numbers = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    let shown = |line: &str| match line.split_once(": ") {
        // The label may have the number of kills.
        Some((label, digest)) if digest.contains("digest ") => {
            Some(format!("{}: {}", without_numbers(label), digest.trim_start()))
        }
        _ if line.starts_with("$ ") => Some(line.to_owned()),
        Some((worker, _)) if worker.starts_with("worker ") => Some(worker.to_owned()),
        _ if line.ends_with(" ready") => Some(without_numbers(line)),
        _ => line.split_once(" [").map(|(epoch, _)| epoch.to_owned()),
    };
    screen.lines().filter_map(shown).collect()
}
