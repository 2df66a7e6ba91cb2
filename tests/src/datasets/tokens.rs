//! Tokens: files, each of which only one process can take. They limit how often something happens in all
//! processes together.

use std::{fs, path::Path};

/// Gives each listed sample the given number of tokens, in `folder`.
///
/// # Panics
/// Panics if a file cannot be written.
pub fn put_tokens(folder: &Path, samples: &[(usize, u32)]) {
    for &(index, count) in samples {
        for number in 0..count {
            fs::write(folder.join(format!("{index}-{number}")), "").expect("the folder can be written");
        }
    }
}

/// Takes a token of sample `index`. Returns false if there is none.
pub fn take_token(folder: &Path, index: usize) -> bool {
    let file = |number| folder.join(format!("{index}-{number}"));
    let left = (0..).take_while(|&number| file(number).exists()).count();
    // If several processes remove the same file, only one succeeds.
    (0..left).rev().any(|number| fs::remove_file(file(number)).is_ok())
}
