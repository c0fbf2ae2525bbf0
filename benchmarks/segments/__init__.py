"""Measurements behind memsvc/segments/DESIGN.md."""
