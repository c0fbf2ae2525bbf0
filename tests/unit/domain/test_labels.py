"""Labels: the list that every layer goes by."""

from __future__ import annotations

from dataclasses import fields

from memsvc.domain.labels import LABELS
from memsvc.domain.types import Metadata
from memsvc.v1 import types_pb2


def test_no_text_of_the_metadata_is_left_out() -> None:
    assert set(LABELS) == {f.name for f in fields(Metadata) if f.default == ""}
    texts = {f.name for f in types_pb2.Metadata.DESCRIPTOR.fields if f.type == f.TYPE_STRING}
    assert set(LABELS) == texts
