//! .
/// .
#[derive(Debug)]
pub struct Config;
