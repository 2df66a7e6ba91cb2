//! `#[derive(Sample)]`.
