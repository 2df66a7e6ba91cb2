//! 64 aligned bytes: what a heap buffer is a vector of.

/// Plain bytes with the alignment of a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

// SAFETY: zero bytes are a valid array of bytes.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: 64 bytes with alignment 64 have no padding; every bit pattern is valid; `Line` is `Copy` and `'static`.
unsafe impl bytemuck::Pod for Line {}
