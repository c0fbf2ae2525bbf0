"""How one setting is declared, and how its declaration is read back.

The models in this package declare every setting through `key()`. What stands there (meaning,
unit, range, default, whether a running server takes a new value) is the single source for
validation messages, the reference page and the example file.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from memsvc.domain.addresses import ListenAddress, split_listen

ENV_PREFIX = "MEMSVC_"


class Section(BaseModel):
    """A group of settings: immutable, and without room for keys nobody declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def parse_listen(text: str) -> ListenAddress:
    """Split "host:port" or "[v6]:port"; ValueError says what is wrong with it."""
    host, port = split_listen(text, 8848)
    if not host:
        raise ValueError("host and port are both needed, as in 127.0.0.1:8848")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("the port is a number from 0 to 65535")
    return ListenAddress(host, int(port))


def check_listen(text: str) -> str:
    """Validator of an address that must be given."""
    parse_listen(text)
    return text


def check_listen_or_off(text: str) -> str:
    """Validator of an address that may be empty, meaning: do not listen."""
    return check_listen(text) if text else text


def key(
    default: object,
    description: str,
    *,
    reload: bool,
    unit: str = "",
    expects: str = "",
    **constraints: Any,
) -> Any:
    """Declare a setting.

    `description` says what it does and what other values do; `unit` is what a number counts;
    `expects` replaces the derived wording of the allowed values; `reload` says whether a
    running server takes a new value.
    """
    return Field(
        default,
        description=description,
        json_schema_extra={"reload": reload, "unit": unit, "expects": expects},
        **constraints,
    )


@dataclass(frozen=True)
class KeyInfo:
    """One setting as its declaration describes it."""

    name: str  # dotted, as in "server.listen"
    type: Any
    default: object
    description: str
    unit: str
    expects: str  # allowed values in words
    reload: bool

    @property
    def env(self) -> str:
        """Name of the environment variable that sets it."""
        return ENV_PREFIX + self.name.upper().replace(".", "__")

    @property
    def is_text(self) -> bool:
        """True when the value is taken as written, not parsed as YAML."""
        return self.type in (str, Path) or get_origin(self.type) is Literal


def iter_keys(model: type[BaseModel], prefix: str = "") -> Iterator[KeyInfo]:
    """Yield every setting below `model` in the order of declaration."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from iter_keys(kind, f"{prefix}{name}.")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        unit = str(extra.get("unit", ""))
        yield KeyInfo(
            name=prefix + name,
            type=kind,
            default=field.default,
            description=field.description or "",
            unit=unit,
            expects=str(extra.get("expects") or "") or _expects(kind, field, unit),
            reload=bool(extra.get("reload", False)),
        )


def _expects(kind: Any, field: FieldInfo, unit: str) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(kind))
    if kind is bool:
        return "true or false"
    if kind not in (int, float):
        origin = get_origin(kind)
        names: dict[Any, str] = {tuple: "a list of texts", dict: "a mapping", None: "a text"}
        return names.get(None if isinstance(kind, types.UnionType) else origin, "a text")
    bounds: dict[str, Any] = {}
    for rule in field.metadata:
        if isinstance(rule, annotated_types.Ge):
            bounds["from"] = rule.ge
        elif isinstance(rule, annotated_types.Gt):
            bounds["above"] = rule.gt
        elif isinstance(rule, annotated_types.Le):
            bounds["to"] = rule.le
    words = ["an integer" if kind is int else "a number"]
    words += [f"{word} {bound}" for word, bound in bounds.items()]
    return " ".join(words) + (f" ({unit})" if unit else "")
