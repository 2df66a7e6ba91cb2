//! Image folders over real files.

mod damaged;
mod files;
mod folders;
mod made;
mod odd_files;
mod transforms;
