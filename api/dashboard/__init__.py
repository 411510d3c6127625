"""The pages: HTML frames that small ES modules fill from the public API."""
