"""What runs where samples are loaded, in workers or in main without workers: the fetcher, keys, random numbers, the
states of datasets, and the default collation."""
