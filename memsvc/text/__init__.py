"""Keyword search without I/O: terms, BM25, the in-memory index, fusion with vectors."""
