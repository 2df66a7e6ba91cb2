//! The element type of heap buffers: 64 aligned bytes.

/// 64 plain bytes with the alignment of a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

// SAFETY: zero bytes are a valid array of bytes.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: 64 bytes with alignment 64 have no padding; every bit pattern is valid; `Line` is `Copy` and
// `'static`.
unsafe impl bytemuck::Pod for Line {}
