"""Reading settings from a file, the environment and explicit overrides.

Each source yields values under dotted keys together with where they came from, and problems
in the words of whoever has to fix them. All problems are collected before anything is refused,
so that one start shows all of them.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from memsvc.config.fields import ENV_PREFIX
from memsvc.config.model import KEYS

# Read by the command line and the client, not settings of a node.
RESERVED_ENV = frozenset(
    {
        "MEMSVC_ADDRESS",
        "MEMSVC_CA_FILE",
        "MEMSVC_CERT_FILE",
        "MEMSVC_CONFIG",
        "MEMSVC_DATA",
        "MEMSVC_DIMENSION",
        "MEMSVC_EMBEDDER",
        "MEMSVC_ENDPOINT",
        "MEMSVC_KEY_FILE",
        "MEMSVC_MCP_TOKEN",
        "MEMSVC_MIN_SCORE",
        "MEMSVC_MODEL",
        "MEMSVC_NAMESPACE",
        "MEMSVC_TOKEN",
    }
)

# Kubernetes adds such variables to every pod for a Service called memsvc or memsvc-something.
_SERVICE_LINK = re.compile(r"MEMSVC_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)")
_SERVICE_LINK_URL = re.compile(r"MEMSVC_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")


@dataclass(frozen=True)
class Found:
    """A value and where it stands."""

    value: object
    origin: str  # "file:PATH:LINE", "env:NAME" or "override"


@dataclass
class Collected:
    """What the sources said so far; a later source replaces an earlier one key by key."""

    values: dict[str, Found] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def place(origin: str) -> str:
    """An origin in the form in which problems begin."""
    kind, _, rest = origin.partition(":")
    return {"file": rest, "env": f"environment {rest}"}.get(kind, origin)


def nearest(name: str) -> str | None:
    """The known key that was probably meant by an unknown one, if any is near."""
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in KEYS if known.rpartition(".")[2] == leaf]
    if len(same_leaf) == 1:
        return same_leaf[0]
    close = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.6)
    return close[0] if close else None


def _unknown(origin: str, name: str) -> str:
    meant = nearest(name)
    if meant and origin.startswith("env:"):
        meant = f"{KEYS[meant].env} ({meant})"
    hint = f"; did you mean {meant}?" if meant else ""
    return f"{place(origin)}: {name}: unknown key{hint}"


def _is_section(name: str) -> bool:
    return any(known.startswith(name + ".") for known in KEYS)


# --- file ---------------------------------------------------------------------------------


def read_file(path: Path, into: Collected) -> None:
    """Add the settings of a YAML file. A section without keys says nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        into.problems.append(f"{path}: cannot be read: {reason}")
        return
    try:
        loader = yaml.SafeLoader(text)  # refuses control characters
        try:
            root = loader.get_single_node()
            if root is not None:
                _walk(loader, root, "", path, into)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        into.problems.append(f"{path}:{line}: not valid YAML: {error.problem}")
    except yaml.YAMLError as error:
        into.problems.append(f"{path}: not valid YAML: {error}")
    except RecursionError:
        into.problems.append(f"{path}: not valid YAML: nested without end")


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, prefix: str, path: Path, into: Collected
) -> None:
    if not isinstance(node, yaml.MappingNode):
        if not (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
            into.problems.append(
                f"{path}:{node.start_mark.line + 1}: {prefix.rstrip('.') or 'the file'}: "
                "expected a mapping of keys"
            )
        return
    seen: set[str] = set()
    for key_node, value_node in node.value:
        origin = f"file:{path}:{key_node.start_mark.line + 1}"
        name = prefix + str(key_node.value)
        if name in seen:
            into.problems.append(f"{place(origin)}: {name}: given twice")
        seen.add(name)
        if name in KEYS:
            try:
                value = loader.construct_object(value_node, deep=True)
            except (ValueError, OverflowError):
                # A date of month 99, a number of thousands of digits.
                into.problems.append(f"{place(origin)}: {name}: no value of YAML")
            else:
                into.values[name] = Found(value, origin)
        elif _is_section(name):
            _walk(loader, value_node, name + ".", path, into)
        else:
            into.problems.append(_unknown(origin, name))


# --- environment and overrides ------------------------------------------------------------


def read_env(env: Mapping[str, str], into: Collected) -> None:
    """Add MEMSVC_SECTION__KEY variables. Values that are not texts are written as YAML."""
    by_env = {info.env: info for info in KEYS.values()}
    flat = {name.replace("__", "_"): name for name in by_env}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or variable in RESERVED_ENV:
            continue
        origin = f"env:{variable}"
        if info := by_env.get(variable):
            value = text if info.is_text else _parse(text)
            into.values[info.name] = Found(value, origin)
        elif _is_service_link(variable, text):
            continue
        elif variable in flat:
            into.problems.append(
                f"{place(origin)}: unknown; did you mean {flat[variable]} (two underscores "
                "between section and key)?"
            )
        else:
            name = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            into.problems.append(_unknown(origin, name))


def _is_service_link(variable: str, text: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable):
        return True
    if not _SERVICE_LINK_URL.fullmatch(variable):
        return False
    return re.search(r"_(TCP|UDP|SCTP)_\w+$", variable) is not None or "://" in text


def read_overrides(overrides: Mapping[str, object], into: Collected) -> None:
    """Add explicit values by dotted key. Texts for settings of other types are read as YAML."""
    for name, value in overrides.items():
        info = KEYS.get(name)
        if info is None:
            into.problems.append(_unknown("override", name))
        elif isinstance(value, str) and not info.is_text:
            into.values[name] = Found(_parse(value), "override")
        else:
            into.values[name] = Found(value, "override")


def _parse(text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # the type check will say what was expected
    return value


# --- together -----------------------------------------------------------------------------


def nested(values: Mapping[str, object]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        *sections, leaf = name.split(".")
        level = root
        for section in sections:
            level = level.setdefault(section, {})
        level[leaf] = value
    return root


def owners(location: tuple[int | str, ...]) -> Iterator[str]:
    """The settings that a validation location may belong to, most specific first."""
    for length in range(len(location), 0, -1):
        name = ".".join(str(part) for part in location[:length])
        if name in KEYS:
            yield name
