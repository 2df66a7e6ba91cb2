//! The layers inside the crates and inside the Python package: a module imports only from its own layer and from the
//! layers below it. The table in the section "Layers" of docs/architecture.md is the list that this test reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, iter,
    path::Path,
};

/// The layers of a crate, the highest first. A layer is a list of modules at the root of the crate.
type Layers = Vec<Vec<String>>;

/// The Python package in this crate has layers; its Rust code has none.
const PYTHON: &str = "loader-python";

#[test]
fn no_module_imports_from_a_layer_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = read_table(&fs::read_to_string(root.join("docs/architecture.md")).unwrap());
    assert!(crates.contains_key("loader-core"), "{:?}", crates.keys());
    assert!(crates.contains_key(PYTHON), "{:?}", crates.keys());
    let mut problems = String::new();
    for (name, layers) in &crates {
        let folder = format!("{name}/{}", if name == PYTHON { "python/loader" } else { "src" });
        let mut sources = BTreeMap::new();
        read_sources(&root.join(&folder), "", &mut sources);
        problems.extend(check(layers, &sources).iter().map(|problem| format!("{folder}/{problem}\n")));
    }
    assert!(problems.is_empty(), "the code differs from the layers in docs/architecture.md:\n{problems}");
}

#[test]
fn each_kind_of_problem_is_found() {
    let layers: Layers = vec![vec!["top".to_owned()], vec!["low".to_owned()]];
    let problems = |sources: &[(&str, &str)]| {
        let all = [("top/mod.rs", ""), ("low/mod.rs", "")].iter().chain(sources);
        check(&layers, &all.map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    };
    let tests =
        "#[cfg(test)]\nmod tests {\n    use crate::top::A;\n}\n#[cfg(test)]\nmod golden;\n// crate::top\n";
    let fine = [("top/a.rs", "use crate::{low, top::B};\n$crate::A"), ("low/a/mod.rs", tests)];
    assert_eq!(problems(&[fine[0], fine[1], ("low/a/golden.rs", "use crate::top::A;")]), [""; 0]);
    let up = "low/b.rs:3: `low` imports crate::top::a from `top`, a layer above it";
    assert_eq!(problems(&[("low/b.rs", "\nuse crate::{\n    low::c as d, top::{a::A}\n};")]), [up]);
    assert_eq!(problems(&[("low/b.rs", "\n\nfn f() -> super::super::top::a::A {}")]), [up]);
    let of_root = "top/a.rs:1: `top` imports crate::A from the root of the crate, a layer above it";
    assert_eq!(problems(&[("top/a.rs", "type B = crate::A;")]), [of_root]);
    let [a, b, c] = ["use crate::low::b::B;", "use crate::low::c::C;", "use super::a::A;"];
    let circle = ["low: more than two of its modules import each other in circles: low::a, low::b, low::c"];
    assert_eq!(problems(&[("low/a.rs", a), ("low/b.rs", b), ("low/c.rs", c)]), circle);
    assert_eq!(problems(&[("new.rs", "")]), ["new: it is in no layer"]);
    let no_top = check(&layers, &BTreeMap::from([("low.rs".to_owned(), String::new())]));
    assert_eq!(no_top, ["top: it is in a layer, but does not exist"]);
}

#[test]
fn the_imports_of_the_python_package_are_found() {
    let layers: Layers = vec![vec!["_top".to_owned()], vec!["_low".to_owned()], vec!["_native".to_owned()]];
    let problems = |source: (&str, &str)| {
        let root = ("__init__.py", "from ._top._a import A");
        let all = [root, ("_top/__init__.py", ""), ("_low/__init__.py", ""), ("_native.pyi", ""), source];
        check(&layers, &all.map(|(path, text)| (path.to_owned(), text.to_owned())).into())
    };
    let fine =
        "import os\nfrom .. import _native\nfrom .._low import _b\nfrom . import _c\nfrom top import a\n";
    assert_eq!(problems(("_top/_b.py", fine)), [""; 0]);
    let up = "_low/_b.py:2: `_low` imports loader._top._a from `_top`, a layer above it";
    for import in
        ["from .._top import _a", "from .._top._a import A as B", "from loader._top import _a  # noqa"]
    {
        assert_eq!(problems(("_low/_b.py", &format!("\n{import}\n"))), [up], "{import}");
        assert_eq!(problems(("_low/_b.py", &format!("def f():\n    {import}\n"))), [up], "{import}");
    }
    assert_eq!(problems(("_low/_b.py", "\nfrom .._top import (\n    _a,\n)\n")), [up]);
    let of_root = "_low/_b.py:1: `_low` imports loader.A from the root of the crate, a layer above it";
    assert_eq!(problems(("_low/_b.py", "from .. import _native, A\n")), [of_root]);
    assert_eq!(problems(("_new/__init__.py", "")), ["_new: it is in no layer"]);
}

/// Reads rows such as "| `loader-core` | `builder`, `loader` | what programs use |".
fn read_table(text: &str) -> BTreeMap<String, Layers> {
    let section = text.split("\n## ").find(|section| section.starts_with("Layers\n")).unwrap();
    let mut crates = BTreeMap::<_, Layers>::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let cells: Vec<_> = row.split('|').map(names).collect();
        crates.entry(cells[1][0].clone()).or_default().push(cells[2].clone());
    }
    crates
}

/// Reads the source files in a folder, by their path below `src`.
fn read_sources(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        if entry.path().is_dir() {
            read_sources(&entry.path(), &format!("{name}/"), sources);
        } else if [".rs", ".py", ".pyi"].iter().any(|end| name.ends_with(end)) {
            sources.insert(name, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

/// Returns what is wrong with the source files of a crate.
fn check(layers: &Layers, sources: &BTreeMap<String, String>) -> Vec<String> {
    let layer_of = |module: &str| layers.iter().position(|layer| layer.iter().any(|name| name == module));
    let of_files: BTreeMap<_, _> = sources.keys().map(|file| (module_of(file), file)).collect();
    let roots: BTreeSet<&String> = of_files.keys().filter_map(|module| module.first()).collect();
    let unlisted = roots.iter().filter(|name| layer_of(name).is_none());
    let absent = layers.iter().flatten().filter(|name| !roots.contains(name));
    let mut problems: Vec<_> = unlisted.map(|name| format!("{name}: it is in no layer")).collect();
    problems.extend(absent.map(|name| format!("{name}: it is in a layer, but does not exist")));
    let tests: Vec<_> =
        of_files.iter().flat_map(|(module, file)| tests_in(module, &sources[*file])).collect();
    let mut within = BTreeMap::<_, BTreeMap<String, BTreeSet<String>>>::new();
    for (module, file) in &of_files {
        let Some(layer) = module.first().and_then(|root| layer_of(root)) else { continue };
        if tests.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        // The parts of a layer that is one folder are the modules in it.
        let part = |path: &[String]| {
            let is_folder = layers[layer].len() == 1 && path.len() > 1 && of_files.contains_key(&path[..2]);
            path[..if is_folder { 2 } else { 1 }].join("::")
        };
        let text = &sources[*file];
        let paths = if is_python(file) { imports_in(file, text) } else { paths_in(module, text) };
        for (line, path) in paths {
            let from = layer_of(&path[0]);
            if from == Some(layer) && part(&path) != part(module) {
                within.entry(layer).or_default().entry(part(module)).or_default().insert(part(&path));
            } else if from.is_none_or(|from| from < layer) {
                let from = from.map_or("the root of the crate".to_owned(), |from| named(&layers[from]));
                let (own, path) = (named(&layers[layer]), &path[..path.len().min(2)]);
                let (crate_, separator) = if is_python(file) { ("loader", ".") } else { ("crate", "::") };
                let path = [&[crate_.to_owned()], path].concat().join(separator);
                problems.push(format!("{file}:{line}: {own} imports {path} from {from}, a layer above it"));
            }
        }
    }
    for (layer, circles) in within.into_iter().map(|(layer, imports)| (layer, in_circles(imports))) {
        if circles.len() > 2 {
            let (layer, circles) = (layers[layer].join(", "), circles.join(", "));
            problems.push(format!(
                "{layer}: more than two of its modules import each other in circles: {circles}"
            ));
        }
    }
    problems
}

fn named(layer: &[String]) -> String {
    layer.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn is_python(file: &str) -> bool {
    !file.ends_with(".rs")
}

/// Returns the path of the module in a file, such as `low`, `b` for `low/b.rs`; it is empty for the root of a crate.
fn module_of(file: &str) -> Vec<String> {
    let path = file.rsplit_once('.').map_or(file, |(path, _)| path);
    let path = path.trim_end_matches("/mod").trim_end_matches("/__init__");
    let is_root = matches!(path, "lib" | "main" | "__init__") || path.starts_with("bin/");
    path.split('/').filter(|_| !is_root).map(str::to_owned).collect()
}

fn is_for_tests(line: &str) -> bool {
    line.trim_start().starts_with("#[cfg(test)]") || line.trim_start().starts_with("#[cfg(all(test")
}

/// Returns the paths of the modules in files of their own that `module` declares for tests only.
fn tests_in(module: &[String], text: &str) -> Vec<Vec<String>> {
    let items = text.lines().zip(text.lines().skip(1)).filter(|(attribute, _)| is_for_tests(attribute));
    let names = items.filter_map(|(_, item)| item.trim().strip_prefix("mod ")?.strip_suffix(';'));
    names.map(|name| [module, &[name.to_owned()]].concat()).collect()
}

/// Returns the text without comments and without items for tests, in as many lines. As rustfmt writes it, the last
/// line of an item begins where the item begins.
fn code_of(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut code, mut test) = (String::new(), None);
    for line in text.lines() {
        if is_for_tests(line) {
            test.get_or_insert(indent(line));
        } else if let Some(start) = test {
            if indent(line) == start && !line.trim_start().starts_with('#') && line.ends_with([';', '}', ','])
            {
                test = None;
            }
        } else if !line.trim_start().starts_with("//") {
            code += line;
        }
        code.push('\n');
    }
    code
}

/// Returns the paths in the code of `module` that begin with `crate` or `super`, from the root of the crate, and their
/// lines.
fn paths_in(module: &[String], text: &str) -> Vec<(usize, Vec<String>)> {
    let (code, mut paths) = (code_of(text), Vec::new());
    for (start, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let is_inner = code[..start].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c));
        let (mut base, mut rest) = (module.to_vec(), &code[start..]);
        if word == "crate::" {
            (base, rest) = (Vec::new(), &rest[word.len()..]);
        }
        while let Some(above) = rest.strip_prefix("super::") {
            base.pop();
            rest = above;
        }
        // In a module inside a file, whose lines are indented, `super` is the module of the file.
        let is_indented = code[..start].rsplit('\n').next().is_some_and(|line| line.starts_with(' '));
        let is_of_file = base.is_empty() && word == "super::" && is_indented;
        if !is_inner && !is_of_file {
            read_paths(&code, rest, &base, &mut paths);
        }
    }
    paths
}

/// Reads the path below `base` at the beginning of `rest`, the end of `code`, or each path of a list in braces. Returns
/// the text behind it.
fn read_paths<'a>(
    code: &'a str,
    mut rest: &'a str,
    base: &[String],
    paths: &mut Vec<(usize, Vec<String>)>,
) -> &'a str {
    if rest.starts_with('{') {
        while !rest.starts_with('}') {
            rest = read_paths(code, rest[1..].trim_start(), base, paths);
            rest = &rest[rest.find([',', '}']).unwrap()..];
            let is_last = rest.strip_prefix(',').is_some_and(|rest| rest.trim_start().starts_with('}'));
            rest = if is_last { rest[1..].trim_start() } else { rest };
        }
        return &rest[1..];
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let path = [base, &[rest[..end].to_owned()]].concat();
    match rest[end..].strip_prefix("::").filter(|rest| !rest.starts_with('<')) {
        Some(rest) => read_paths(code, rest, &path, paths),
        None => {
            paths.push((1 + code[..code.len() - rest.len()].matches('\n').count(), path));
            &rest[end..]
        }
    }
}

/// Returns what the imports in a file of the Python package name, from the root of the package, and their lines.
fn imports_in(file: &str, text: &str) -> Vec<(usize, Vec<String>)> {
    let (own, mut imports): (Vec<_>, _) = (iter::once("loader").chain(file.split('/')).collect(), Vec::new());
    for (start, word) in text.match_indices("from ") {
        let is_first = text[..start].rsplit('\n').next().is_some_and(|before| before.trim().is_empty());
        let Some((from, names)) = text[start + word.len()..].split_once(" import ") else { break };
        if !is_first || from.contains(char::is_whitespace) {
            continue;
        }
        let inner = from.trim_start_matches('.');
        let above = if inner == from { 0 } else { own.len() - (from.len() - inner.len()) };
        let inner = inner.split('.').filter(|part| !part.is_empty());
        let path: Vec<_> = own[..above].iter().copied().chain(inner).collect();
        let end = if names.starts_with('(') { names.find(')') } else { names.find(['\n', '#']) };
        let names = names[..end.unwrap_or(names.len())].trim_start_matches('(').split(',');
        for name in names.filter_map(|name| name.split_whitespace().next()).filter(|_| path[0] == "loader") {
            let path = path[1..].iter().chain([&name]).map(|part| (*part).to_owned()).collect();
            imports.push((1 + text[..start].matches('\n').count(), path));
        }
    }
    imports
}

/// Returns the modules that are in circles, or between two circles.
fn in_circles(mut imports: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let before = imports.len();
        let imported: BTreeSet<String> = imports.values().flatten().cloned().collect();
        imports.retain(|module, _| imported.contains(module));
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.values_mut().for_each(|imported| imported.retain(|module| left.contains(module)));
        imports.retain(|_, imported| !imported.is_empty());
        if imports.len() == before {
            return imports.into_keys().collect();
        }
    }
}
