"""How Keyscale is run: images, the local stack, and the demo."""
