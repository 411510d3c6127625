"""Keys: hashing, key groups, and the form in which keys are stored."""
