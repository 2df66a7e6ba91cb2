//! Tests of image folders with real files.

mod damaged;
mod files;
mod folders;
mod made;
mod odd_files;
mod transforms;
