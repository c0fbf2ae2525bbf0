"""The labels of a memory: those fields of its metadata that hold one short text each."""

from operator import attrgetter
from typing import Final

LABELS: Final = ("role", "source", "topic", "category", "memory_type", "topic_key")
"""In the order in which they are shown. A label that is empty is missing."""

labels_of: Final = attrgetter(*LABELS)
"""Their values, of whatever has them all."""
