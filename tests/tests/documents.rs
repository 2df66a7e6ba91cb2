//! The links of all documents: a file that does not exist, or a heading that a page does not have, fails a test. So
//! does, once the repository has an address, a link of a package's README that leads nowhere on crates.io and docs.rs.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    fmt::Write,
    fs,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = read_pages(&root());
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    assert!(pages.len() > 20 && links > 300, "{} pages with {links} links", pages.len());
    let broken = broken_links(&root(), &pages);
    assert!(broken.is_empty(), "broken links:\n{broken}");
}

#[test]
fn the_book_has_every_document_once_and_every_page_that_these_link_to() {
    let pages = read_pages(&root());
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = pages[summary].links.iter().map(|link| resolve(summary, &link.to)).collect();
    for page in pages.keys().filter(|page| page.starts_with("docs") && *page != summary) {
        let count = listed.iter().filter(|listed| *listed == page).count();
        assert_eq!(count, 1, "docs/SUMMARY.md must list {} once", page.display());
    }
    for page in &listed {
        for Link { to, .. } in &pages[page].links {
            let target = resolve(page, to.split('#').next().unwrap());
            let in_book = !pages.contains_key(&target) || listed.contains(&target);
            assert!(
                in_book,
                "docs/SUMMARY.md must list {}, to which {} links",
                target.display(),
                page.display()
            );
        }
    }
}

#[test]
fn the_lists_of_features_are_those_of_the_packages() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    for (package, lists) in [
        ("loader", &["README.md", "loader/src/lib.rs"][..]),
        ("loader-cli", &["loader-cli/README.md"]),
        ("loader-data", &["loader-data/README.md"]),
    ] {
        let items = features(&read(&format!("{package}/Cargo.toml")));
        assert!(items.len() > 3, "{items:?}");
        for list in lists {
            let text = read(list).replace("\n//!", "\n");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&items.join(" ")), "{list} must have this list:\n{}", items.join("\n"));
        }
    }
}

/// Returns an item of a list for each feature of a manifest: its name, and the comment before it.
fn features(manifest: &str) -> Vec<String> {
    let (mut items, mut comment) = (Vec::new(), String::new());
    let section = manifest.split("\n[features]\n").nth(1).unwrap().split("\n[").next().unwrap();
    for line in section.lines() {
        if let Some(text) = line.strip_prefix('#') {
            comment += text;
        } else if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| *name != "default") {
            items.push(format!("- `{name}`:{}", std::mem::take(&mut comment)));
        }
    }
    items
}

#[test]
fn broken_links_are_found() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    let text = "# One `two`: three\n\n## Same\n\n## Same\n\n[a](#one-two-three) [b](#same-1) [c](../a.txt) [d](https://x.y)\n\
                \n```\n[no link](nowhere)\n```\n\n[e](#same-2)\n[f](b.md) ![g](../c.svg)\n[h](../docs/a.md#two) [i](../../a)\n";
    fs::write(folder.path().join("docs/a.md"), text).unwrap();
    fs::write(folder.path().join("a.txt"), "").unwrap();
    let broken = broken_links(folder.path(), &read_pages(folder.path()));
    let expected = "docs/a.md:13: #same-2\ndocs/a.md:14: b.md\ndocs/a.md:14: ../c.svg\n\
                    docs/a.md:15: ../docs/a.md#two\ndocs/a.md:15: ../../a\n";
    assert_eq!(broken, expected);
}

/// `UPDATE_DOCS=1` writes the links.
#[test]
fn the_readmes_of_packages_link_into_the_repository_once_it_has_an_address() {
    let (root, repository) = (root(), repository(&root()));
    let pages = read_pages(&root);
    let readmes: Vec<_> = pages.iter().filter(|(path, _)| is_readme_of_package(&root.join(path))).collect();
    let links = |page: &Page| page.links.iter().filter(|link| !link.to.starts_with('#')).count();
    let count: usize = readmes.iter().map(|(_, page)| links(page)).sum();
    assert!(readmes.len() > 12 && count > 10, "{} READMEs with {count} links to files", readmes.len());
    let Some(repository) = repository else { return };
    for (path, _) in readmes {
        let text = fs::read_to_string(root.join(path)).unwrap();
        let expected = with_links_into(&repository, path, &text);
        if env::var_os("UPDATE_DOCS").is_some() {
            fs::write(root.join(path), &expected).unwrap();
        } else {
            let advice = "run UPDATE_DOCS=1 cargo test --package loader-tests --test documents";
            assert!(text == expected, "{} has relative links; {advice}", path.display());
        }
    }
}

#[test]
fn links_into_the_repository_are_made_and_followed() {
    let text = "[a](../../docs/a.md#b) [c](#d) ![e](e.svg) [f](https://f.g)\n\n```text\n[a](../../docs/a.md)\n```\n\
                [h](../../docs/a.md)\n";
    let made = with_links_into("https://x.y/z", Path::new("one/two/README.md"), text);
    let expected = "[a](https://x.y/z/blob/main/docs/a.md#b) [c](#d) ![e](https://x.y/z/blob/main/one/two/e.svg) \
                    [f](https://f.g)\n\n```text\n[a](../../docs/a.md)\n```\n\
                    [h](https://x.y/z/blob/main/docs/a.md)\n";
    assert_eq!(made, expected);
    let page = read_page(&made, Some("https://x.y/z"));
    let targets: Vec<_> =
        page.links.iter().map(|link| resolve(Path::new("one/two/README.md"), &link.to)).collect();
    assert_eq!(targets[0], Path::new("docs/a.md#b"));
    assert_eq!(targets[3], Path::new("docs/a.md"));
}

#[test]
fn the_readme_shows_lines_of_the_examples() {
    let root = root();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let readme = read("README.md");
    for (section, program) in
        [("With burn", "examples/photos/src/main.rs"), ("With candle", "examples/digits/src/main.rs")]
    {
        let (_, text) = readme.split_once(&format!("\n## {section}\n")).unwrap();
        let (_, code) = text.split_once("```rust,ignore\n").unwrap();
        let (code, _) = code.split_once("```").unwrap();
        assert!(code.lines().count() > 8, "{section}");
        let program = read(program);
        let mut lines = program.lines().map(str::trim);
        for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert!(
                lines.any(|other| other == line),
                "{section}: no such line, or not in this order: {line}"
            );
        }
    }
}

/// What a page of Markdown has that matters to links.
#[derive(Default)]
struct Page {
    /// The names of its headings in links.
    anchors: HashMap<String, usize>,
    /// Its links and images within the repository.
    links: Vec<Link>,
}

struct Link {
    line: usize,
    to: String,
}

/// Returns the address of the repository, which is unknown until there is one.
fn repository(root: &Path) -> Option<String> {
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml")).ok()?.parse().unwrap();
    Some(manifest["workspace"]["package"].get("repository")?.as_str().unwrap().to_owned())
}

/// True for the README of a package that is published on crates.io or PyPI.
fn is_readme_of_package(path: &Path) -> bool {
    let manifest = fs::read_to_string(path.with_file_name("Cargo.toml")).unwrap_or_default();
    let is_crate = manifest.contains("\n[package]") || manifest.starts_with("[package]");
    let is_published = is_crate && !manifest.contains("\npublish = false");
    path.ends_with("README.md") && (is_published || path.with_file_name("pyproject.toml").exists())
}

/// Returns the text of a page in which relative links are links into the repository.
fn with_links_into(repository: &str, page: &Path, text: &str) -> String {
    let mut linked = String::new();
    let mut end = 0;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else { continue };
        if dest_url.contains(':') || dest_url.starts_with('#') {
            continue;
        }
        // The range is that of the whole link, whose address is at its end.
        let address = range.start + text[range.clone()].rfind(&*dest_url).unwrap();
        linked.push_str(&text[end..address]);
        write!(linked, "{repository}/blob/main/{}", resolve(page, &dest_url).display()).unwrap();
        end = address + dest_url.len();
    }
    linked + &text[end..]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Reads the Markdown files below `root`, without those in hidden folders, except `.github`, and in build folders.
fn read_pages(root: &Path) -> BTreeMap<PathBuf, Page> {
    let repository = repository(root);
    let mut pages = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (name, path) = (entry.file_name().into_string().unwrap_or_default(), entry.path());
            let hidden = name.starts_with('.') && name != ".github";
            if entry.file_type().unwrap().is_dir() {
                if !hidden && name != "target" {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                let page = read_page(&fs::read_to_string(&path).unwrap(), repository.as_deref());
                pages.insert(path.strip_prefix(root).unwrap().to_owned(), page);
            }
        }
    }
    pages
}

/// Reads a page. A link into the repository becomes one from its root, such as `/docs/a.md`.
fn read_page(text: &str, repository: Option<&str>) -> Page {
    let into_repository = repository.map(|repository| format!("{repository}/blob/main"));
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap());
                let count = page.anchors.entry(anchor.clone()).or_default();
                *count += 1;
                if *count > 1 {
                    let repeated = format!("{anchor}-{}", *count - 1);
                    page.anchors.insert(repeated, 1);
                }
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = text[..range.start].matches('\n').count() + 1;
                let from_root = into_repository.as_deref().and_then(|start| dest_url.strip_prefix(start));
                let to = from_root.unwrap_or(&dest_url).to_owned();
                if !to.contains(':') {
                    page.links.push(Link { line, to });
                }
            }
            _ => {}
        }
    }
    page
}

/// Returns the name of a heading in links, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns a line for each link to a file that does not exist, to a file outside `root`, or to a heading that does not exist.
fn broken_links(root: &Path, pages: &BTreeMap<PathBuf, Page>) -> String {
    let mut broken = String::new();
    for (path, page) in pages {
        for Link { line, to } in &page.links {
            let (file, anchor) =
                to.split_once('#').map_or((to.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let found = !target.starts_with("..") && root.join(&target).exists();
            let named = anchor.is_none_or(|anchor| {
                pages.get(&target).is_some_and(|page| page.anchors.contains_key(anchor))
            });
            if !found || !named {
                writeln!(broken, "{}:{line}: {to}", path.display()).unwrap();
            }
        }
    }
    broken
}

/// Returns the path to which a link `to` on the page `page` leads.
fn resolve(page: &Path, to: &str) -> PathBuf {
    if let Some(from_root) = to.strip_prefix('/') {
        return PathBuf::from(from_root);
    }
    let mut path = page.parent().unwrap().to_owned();
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir if path.file_name().is_some_and(|name| name != "..") => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}
