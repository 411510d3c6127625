"""Engines: ordered stores of bytes, in RocksDB or in memory."""
