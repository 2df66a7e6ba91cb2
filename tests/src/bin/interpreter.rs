//! Stands in for an interpreter: `test-interpreter LIBRARY FUNCTION` loads a shared library and calls a
//! function in it. Without arguments it reads a script from its standard input, as interpreters do, and
//! prints the script's length.
#![allow(unsafe_code)] // for loading a library

use std::io::Read;

use libloading::{Library, Symbol};

fn add(numbers: Vec<u64>) -> anyhow::Result<u64> {
    Ok(numbers.into_iter().sum())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, function] = &arguments[..] else {
        let mut script = Vec::new();
        std::io::stdin().read_to_end(&mut script)?;
        eprintln!("a script of {} bytes", script.len());
        return Ok(());
    };
    // SAFETY: loading the tests' own library runs no code.
    let library = unsafe { Library::new(library) }?;
    let code = match function.as_str() {
        "train_with_foreign_function" => {
            // SAFETY: the function has this type.
            let run: Symbol<'_, extern "C" fn(usize) -> i32> = unsafe { library.get(function) }?;
            run(add as fn(Vec<u64>) -> anyhow::Result<u64> as usize)
        }
        _ => {
            // SAFETY: all other exported functions have this type.
            let run: Symbol<'_, extern "C" fn() -> i32> = unsafe { library.get(function) }?;
            run()
        }
    };
    std::process::exit(code)
}
