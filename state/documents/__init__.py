"""Documents in the object store: manifests, log entries, changelogs, claims; and versions, which identify a state."""
