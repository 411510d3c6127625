"""Jobs that are rebuilt from the object store."""
