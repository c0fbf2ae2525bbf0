"""Labels: the list that every layer goes by."""

from __future__ import annotations

from memsvc.domain.labels import LABELS
from memsvc.domain.types import Metadata
from memsvc.v1 import types_pb2


def test_no_text_of_the_metadata_is_left_out() -> None:
    assert set(LABELS) == {n for n, default in Metadata._field_defaults.items() if default == ""}
    texts = {f.name for f in types_pb2.Metadata.DESCRIPTOR.fields if f.type == f.TYPE_STRING}
    assert set(LABELS) == texts
