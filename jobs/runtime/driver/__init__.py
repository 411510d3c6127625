"""The life of a driver, from its assignment to its last report."""
