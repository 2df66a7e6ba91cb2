//! Image folders over real files.

mod files;
mod folders;
mod made;
mod transforms;
