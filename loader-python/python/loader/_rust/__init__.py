"""Rust datasets and the loader of their own order."""
