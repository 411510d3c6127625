"""Documents in the object store: manifests, log entries, changelogs, claims, versions."""
