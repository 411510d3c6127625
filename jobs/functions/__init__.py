"""The functions that users write, and the objects passed to them."""
