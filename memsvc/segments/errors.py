"""What can go wrong with the files of a segment."""

from __future__ import annotations

from dataclasses import dataclass

from memsvc.domain.manifest import FileMeta


class BadFile(Exception):
    """A file is not what it should be; the message says in what. Internal to this package:
    whoever knows the file's entry in the manifest turns it into `SegmentDamaged`."""


class FilesUnavailable(OSError):
    """A file cannot be opened now, for want of descriptors, memory or rights. It says
    nothing about the file: nothing is to be set aside for it."""


class SegmentDamaged(Exception):
    """A file of a segment was found damaged while it was being read.

    The part it belongs to is already taken out of service (see ``Segment.damaged``); repeat
    the search with what is left. ``file`` is the damaged one, ``segment`` its segment.
    """

    def __init__(self, segment: str, file: FileMeta, reason: str) -> None:
        super().__init__(f"segment {segment}: {file.name}: {reason}")
        self.segment = segment
        self.file = file
        self.reason = reason


class BuildCancelled(Exception):
    """A build stopped because it was told to; nothing of it is left but a ``.tmp`` folder."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or not as it was written, and what was found."""

    file: FileMeta
    reason: str
