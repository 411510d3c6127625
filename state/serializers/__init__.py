"""Typed serializers: keys in an order-preserving form, values in a compact one, both described by Arrow types."""
