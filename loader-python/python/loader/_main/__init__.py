"""``DataLoader`` and its iterator, in main."""
