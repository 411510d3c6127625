"""Engines: ordered stores of bytes under keyed state, in RocksDB or in memory."""
