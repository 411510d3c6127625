"""Pushes metrics and traces to a collector, by the protocol OTLP."""
