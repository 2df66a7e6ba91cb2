//! The code for candle in the README of the project comes from this example.

#[test]
fn the_readme_shows_lines_of_this_example() {
    let readme = include_str!("../../../README.md");
    let (_, section) = readme.split_once("\n## With candle\n").expect("the section");
    let (_, code) = section.split_once("```rust,ignore\n").expect("a block of code");
    let (code, _) = code.split_once("```").expect("the end of the block");
    let mut lines = include_str!("../src/main.rs").lines();
    assert!(code.lines().count() > 5);
    for line in code.lines() {
        let found = lines.any(|other| other.trim() == line.trim());
        assert!(found, "`{line}` is not in src/main.rs, or not in this order");
    }
}
