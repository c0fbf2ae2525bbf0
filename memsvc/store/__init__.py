"""The database: one LMDB environment that holds log, records, indexes and manifest.

The only package that imports lmdb. Reading goes through ``Snapshot``, changing through
``Writer`` and, below it, ``apply``.
"""
