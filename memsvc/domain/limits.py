"""Every bound of the interface in one place, as documented in the protos.

Byte limits count UTF-8 bytes. They are constants, not settings: clients in other
languages rely on them. What an operator may tune is in the configuration.
"""

from typing import Final

MAX_NAME_BYTES: Final = 200
"""Tenant and agent. Both together with a separator fit an LMDB key (511 bytes)."""
MAX_SESSION_BYTES: Final = 256
MAX_REQUEST_ID_BYTES: Final = 128
MAX_EMBEDDING_BYTES: Final = 128
MAX_DEDUP_KEY_BYTES: Final = 512
MAX_ID_BYTES: Final = 64
MAX_POSITION_BYTES: Final = 128
MAX_PAGE_TOKEN_BYTES: Final = 512
MAX_REASON_BYTES: Final = 256

MAX_CONTENT_BYTES: Final = 65_536
MAX_SUMMARY_BYTES: Final = 8_192
MAX_TEXT_BYTES: Final = 8_192
MAX_LABEL_BYTES: Final = 256
"""Each of ``labels.LABELS``."""

MAX_ATTRIBUTES: Final = 32
MAX_ATTRIBUTE_COLUMNS: Final = 256
MAX_ATTRIBUTE_NAME_BYTES: Final = 64
MAX_ATTRIBUTE_VALUE_BYTES: Final = 1_024
MAX_ATTRIBUTE_LIST: Final = 64

MAX_ITEMS: Final = 1_000
MAX_VECTORS: Final = 64
MAX_IDS: Final = 1_000
MAX_FORGET_IDS: Final = 10_000
MAX_EF_SEARCH: Final = 4_096
MAX_DIMENSION: Final = 8_192
GRAPH_DTYPES: Final = ("f32", "bf16", "f16", "i8")
MIN_M: Final = 2
MAX_M: Final = 128
MIN_EF_CONSTRUCTION: Final = 8
MAX_EF_CONSTRUCTION: Final = 4_096

MAX_FILTER_DEPTH: Final = 8
MAX_FILTER_CONDITIONS: Final = 64
MAX_FILTER_VALUES: Final = 1_000
MAX_CLEAR_FIELDS: Final = 64

MAX_TIME_MS: Final = 253_402_300_799_999
"""Last millisecond of the year 9999."""
MAX_TTL_MS: Final = 3_155_760_000_000
"""One hundred years of 365.25 days."""

MIN_VECTOR_NORM: Final = 1e-12
"""Shorter vectors (zero, denormal) have no direction that float32 could hold."""

MAX_ENTRY_EFFECTS: Final = 10_000
MAX_RETURNED_IDS: Final = 1_000
SUMMARY_FALLBACK_CHARS: Final = 240
REQUEST_ID_TTL_MS: Final = 24 * 3_600_000
"""How long a request id is remembered."""
