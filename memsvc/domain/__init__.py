"""The pure core: types, errors, log entries, filters, scoring, planning.

Nothing here does I/O, reads a clock or draws randomness; those come in as arguments.
"""
