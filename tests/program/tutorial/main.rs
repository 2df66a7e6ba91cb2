//! Runs one of the programs of docs/tutorial.md: the one whose number is in `TUTORIAL_PROGRAM`.

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

fn main() -> anyhow::Result<()> {
    let number: usize = std::env::var("TUTORIAL_PROGRAM")?.parse()?;
    PROGRAMS[number]()
}
