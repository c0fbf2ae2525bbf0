"""Segments: immutable files that answer for the rows of a partition.

`build.build_segment` makes one, `segment.Segment.open` opens it. The map of the package:

- ``arrayfile``, ``files``, ``guarded``: the container of our formats, durability, checksums
- ``vectors``, ``quantise``, ``rescore``, ``topk``: exact scores and scans
- ``graph``: approximate search
- ``postings``, ``sorted_strings``: keywords
- ``columns``, ``column_file``, ``dictionary``, ``numbers``, ``masks``: filters
- ``build``, ``throttle``: making a segment; ``segment``: opening, verifying, setting aside;
  ``check``: measuring a graph before it serves
- ``costs``: what searching costs on this machine

DESIGN.md beside this file has the formats, the measurements and the reasons.
"""
