"""The logs of drivers."""
