"""Typed serializers of keys (order-preserving) and values (compact)."""
