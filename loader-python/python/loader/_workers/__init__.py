"""What starts workers and templates, and what runs in them."""
