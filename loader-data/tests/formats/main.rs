//! Tests of the file formats with real files and real workers. The files under `fixtures` were written by other
//! tools; `fixtures/README.md` says how.

mod everywhere;
mod json_lines;
mod tokens;

loader_worker::init_before_main!();
