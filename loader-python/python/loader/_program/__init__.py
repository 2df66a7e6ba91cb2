"""What main and workers know of the program of main: its script, its modules and its settings."""
