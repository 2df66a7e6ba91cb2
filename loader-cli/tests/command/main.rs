//! Tests of the `loader` command as a process.

mod config;
mod doctor;
mod failures;
mod inspect;
mod interrupt;
mod killed;
mod launchers;
#[cfg(feature = "formats")]
mod layouts;
mod page;
mod pictures;
mod plan;
#[cfg(feature = "formats")]
mod record_pack;
#[cfg(feature = "formats")]
mod record_tools;
#[cfg(feature = "formats")]
mod records;
mod resume;
mod run;
mod same_digest;
mod support;
mod terminal;
mod tune;
#[cfg(feature = "formats")]
mod unread;
