"""Rust datasets, and ``RustLoader``, whose order the engine determines."""
