//! The page of `loader run --report`.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::BufReader,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use scraper::{Html, Selector};

use crate::support::{PHOTOS, Running, assert_gone, command, copy_of_photos, pid, run, worker_pids};

/// Parses the page, which must be valid HTML and name no address.
#[track_caller]
fn parse(path: &Path) -> Html {
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.contains("http") && !text.contains("<script") && !text.contains("@import"), "{text}");
    let page = Html::parse_document(&text);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    page
}

/// Returns the text of each element that `selector` finds.
fn texts(page: &Html, selector: &str) -> Vec<String> {
    let selector = Selector::parse(selector).unwrap();
    page.select(&selector).map(|element| element.text().collect::<String>().trim().to_owned()).collect()
}

#[test]
fn the_page_has_the_figures_of_the_run() {
    let (folder, photos) = copy_of_photos();
    let named = folder.path().join("<i>photos & \"more\"");
    fs::rename(photos, &named).unwrap();
    let mut classes = fs::read_dir(&named).unwrap().map(|entry| entry.unwrap().path());
    let broken = classes.find(|path| path.is_dir()).unwrap().join("<b>.jpg");
    fs::write(&broken, b"no image").unwrap();
    let page = folder.path().join("page.html");
    let options = [
        "--num-workers",
        "2",
        "--batch-size",
        "2",
        "--size",
        "32",
        "--epochs",
        "2",
        "--on-bad-sample",
        "skip",
    ];
    let files = [named.to_str().unwrap(), "--json", "--report", page.to_str().unwrap()];
    let finished = run(&[&["run"], &files[..], &options[..]].concat());
    let epochs = finished.assert_status(0).named("epoch");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file is left");

    let page = parse(&page);
    assert_eq!(texts(&page, "h1"), [format!("loader run {}", named.display())]);
    assert!(texts(&page, "p.note")[0].contains("The run ended by itself."));
    let headings = ["Epochs", "Epoch 0", "Epoch 1", "Bad samples", "Settings"];
    assert_eq!(texts(&page, "h2"), headings);
    // A wide table can be scrolled, and is not cut off.
    let count = |selector| page.select(&Selector::parse(selector).unwrap()).count();
    assert!(count("table") > 3 && count("table") == count("div.wide > table"));
    let rows = Selector::parse("div.wide table").unwrap();
    let table = Html::parse_fragment(&page.select(&rows).next().unwrap().html());
    for (number, epoch) in epochs.iter().enumerate() {
        let cells = texts(&table, &format!("tbody tr:nth-child({}) :is(th, td)", number + 1));
        let expected = [&epoch["epoch"], &epoch["batches"], &epoch["samples"]].map(ToString::to_string);
        assert_eq!(cells[..3], expected, "{cells:?}");
        assert_eq!(cells[4], format!("{:.0}", epoch["samples_per_second"].as_f64().unwrap()));
        assert_eq!(cells[cells.len() - 1], "1");
    }
    // Ready batches and percentiles of each epoch.
    assert_eq!(texts(&page, "svg[role=img][aria-label]").len(), 4);
    assert_eq!(texts(&page, ".bars > span:first-child"), ["worker 0", "worker 0"]);
    assert!(texts(&page, "li").iter().any(|item| item.contains("<b>.jpg")), "the bad sample is missing");
    assert!(texts(&page, "td code").contains(&"32".to_owned()));
}

#[test]
fn a_page_that_cannot_be_written_ends_the_run_before_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/page.html");
    for path in [&missing, folder.path()] {
        let finished =
            run(&["run", PHOTOS, "--json", "--num-workers", "2", "--report", path.to_str().unwrap()]);
        finished.assert_status(1);
        assert!(finished.stderr.contains("cannot be written"), "{}", finished.stderr);
        assert!(finished.named("start").is_empty(), "{}", finished.stdout);
    }
}

/// Starts a long run with small batches, and waits for its first batch. Returns it and its workers.
fn start(page: &Path, workers: &str) -> (Running, Vec<u32>) {
    let options = ["--samples", "100000", "--num-workers", workers, "--size", "16", "--batches", "--json"];
    let report = ["--report", page.to_str().unwrap()];
    let mut running = Running::start(command(&[&["run", PHOTOS], &report[..], &options[..]].concat()));
    let pids = worker_pids(&running.next_event());
    running.next_event();
    (running, pids)
}

#[test]
fn the_page_is_written_after_sigint() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let (running, pids) = start(&page, "2");
    running.signal(Signal::SIGINT);
    running.finish().assert_status(130);
    assert_gone(&pids);
    let page = parse(&page);
    assert!(texts(&page, "p.note")[0].contains("The run ended early: interrupted."));
    assert_eq!(texts(&page, "h2"), ["Epochs", "Epoch 0", "Settings"]);
}

#[test]
fn the_page_is_written_after_sigint_during_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let (running, pids) = start(&page, "1");
    kill(pid(pids[0]), Signal::SIGSTOP).unwrap();
    // Meanwhile, the run gets the batches that are ready, and waits.
    thread::sleep(Duration::from_millis(500));
    running.signal(Signal::SIGINT);
    running.finish().assert_status(130);
    kill(pid(pids[0]), Signal::SIGCONT).ok();
    assert_gone(&pids);
    let page = parse(&page);
    assert!(texts(&page, "p.note")[0].contains("A signal ended the run during a batch."));
    assert_eq!(texts(&page, "h2"), ["Epochs", "Epoch 0", "Settings"]);
}

/// Takes a picture of the page with a browser. Returns the colours in it.
fn colors(browser: &str, page: &Path, scheme: &str) -> BTreeSet<[u8; 3]> {
    let picture = page.with_extension(format!("{scheme}.png"));
    let status = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,1400"])
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(scheme == "light")))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display()))
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let mut reader = png::Decoder::new(BufReader::new(File::open(&picture).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    println!("page: {} x {} pixels, {scheme}: {}", info.width, info.height, picture.display());
    let channels = info.color_type.samples();
    pixels.chunks_exact(channels).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

#[test]
#[ignore = "needs a browser; run by .ci/long page"]
fn the_page_in_a_real_browser() {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let is_there = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let Some(browser) = browsers.into_iter().find(is_there) else {
        println!("SKIPPED: there is no Chromium, so no picture of the page is taken");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let options = ["--samples", "60", "--num-workers", "2", "--batch-size", "4", "--size", "64"];
    run(&[&["run", PHOTOS, "--report", page.to_str().unwrap()], &options[..]].concat()).assert_status(0);
    let (light, dark) = (colors(browser, &page, "light"), colors(browser, &page, "dark"));
    // Lines and dots of the plots, and the phases `decode` and `transform`, look alike on both.
    for color in [[0x3b, 0x82, 0xc4], [0xe0, 0x8a, 0x1e], [0x2f, 0x9e, 0x6e]] {
        assert!(light.contains(&color) && dark.contains(&color), "{color:x?} is missing");
    }
    let (white, black) = ([0xff, 0xff, 0xff], [0x17, 0x1a, 0x1f]);
    assert!(light.contains(&white) && !light.contains(&black));
    assert!(dark.contains(&black) && !dark.contains(&white));
}
