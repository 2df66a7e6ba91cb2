//! Turns docs/tutorial.md into programs, and into the commands that run them.
//!
//! The first `rust` block is the program, and each later one is added to the program's end. A `diff` block
//! changes the program: its lines that begin with a space or `-` must occur together, exactly once. They are
//! replaced by its lines that begin with a space or `+`. `@@` separates changes. A `toml` block is the
//! manifest or `run.toml`. Each `$` line of a `console` block is a command, followed by its output.
//!
//! Alternative considered: a cargo project that a test writes and builds for each step. Rejected because
//! cargo would compile all crates of the loader a second time, and would need the registry.

use std::{env, fs, path::Path};

const TUTORIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");

fn main() {
    println!("cargo::rerun-if-changed={TUTORIAL}");
    let text = fs::read_to_string(TUTORIAL).expect("the tutorial can be read");
    let mut steps = Steps::default();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let block: String = block.flat_map(|line| [line, "\n"]).collect();
        steps.read(number + 1, language, &block);
    }
    steps.write(Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")));
}

#[derive(Default)]
struct Steps {
    manifest: String,
    /// `run.toml` at this point of the tutorial.
    options: String,
    /// `src/main.rs` at this point of the tutorial.
    program: String,
    /// The versions of `src/main.rs` that a command runs.
    programs: Vec<String>,
    /// Code of a `Run` for each command.
    runs: Vec<String>,
}

impl Steps {
    /// Reads the block that begins in line `number` of the tutorial.
    fn read(&mut self, number: usize, language: &str, block: &str) {
        match language {
            "rust" if self.program.is_empty() => self.program = block.to_owned(),
            "rust" => self.program = format!("{}\n{block}", self.program),
            "diff" => block.split("@@\n").for_each(|change| self.change(number, change)),
            "toml" if block.contains("[dependencies]") => self.manifest = block.to_owned(),
            "toml" => self.options = block.to_owned(),
            "console" => self.run(number, block),
            "sh" => {} // creates the project
            _ => panic!("line {number}: the test cannot use a block of `{language}`"),
        }
    }

    fn change(&mut self, number: usize, change: &str) {
        let side = |sign| -> String {
            let lines = change.lines().filter(|line| line.starts_with([' ', sign]));
            lines.flat_map(|line| [&line[1..], "\n"]).collect()
        };
        let (old, new) = (side('-'), side('+'));
        let found = self.program.matches(&old).count();
        assert_eq!(found, 1, "line {number}: the program must have these lines once:\n{old}");
        self.program = self.program.replacen(&old, &new, 1);
    }

    fn run(&mut self, number: usize, block: &str) {
        if self.programs.last() != Some(&self.program) {
            self.programs.push(self.program.clone());
        }
        let program = self.programs.len() - 1;
        for run in format!("\n{block}").split("\n$ ").skip(1) {
            let (command, output) = run.split_once('\n').unwrap_or((run, ""));
            let (options, output) = (&self.options, output.trim_end());
            self.runs.push(format!(
                "Run {{ line: {number}, program: {program}, options: {options:?}, \
                 command: {command:?}, output: {output:?} }},\n"
            ));
        }
    }

    fn write(&self, folder: &Path) {
        let Self { manifest, programs, runs, .. } = self;
        let modules = programs.iter().enumerate().map(|(number, program)| {
            let run = "pub(super) fn run() -> anyhow::Result<()> { main() }";
            format!("mod program_{number} {{\n{program}\n{run}\n}}\n")
        });
        let modules: String = modules.collect();
        let mains: String = (0..programs.len()).map(|number| format!("program_{number}::run, ")).collect();
        let programs = format!("{modules}const PROGRAMS: &[fn() -> anyhow::Result<()>] = &[{mains}];\n");
        let runs =
            format!("const MANIFEST: &str = {manifest:?};\nconst RUNS: &[Run] = &[\n{}];\n", runs.concat());
        fs::write(folder.join("programs.rs"), programs).expect("cargo made the folder");
        fs::write(folder.join("runs.rs"), runs).expect("cargo made the folder");
    }
}
