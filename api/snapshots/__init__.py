"""Checkpoints and savepoints: show, compare, verify and delete them."""
