"""Keys: their hashing, key groups and stored form."""
