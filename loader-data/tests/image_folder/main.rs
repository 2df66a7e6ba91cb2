//! Tests of image folders with real files.

mod damaged;
mod files;
mod folders;
mod odd_files;
mod support;
mod transforms;
mod types;
