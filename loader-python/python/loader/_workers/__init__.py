"""Starts workers and templates, and runs in them."""
