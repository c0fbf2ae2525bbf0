"""The file in which a node remembers what it is: primary or replica, and of whom."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.group import Role
from memsvc.segments.files import publish

log = logging.getLogger(__name__)

NAME: Final = "ROLE"
_FORMAT: Final = 1


def read_role(data_dir: Path, settings: Settings) -> Role:
    """The role of a node; by its settings as long as nothing else was decided, and again once
    they are changed. Raises FailedPrecondition when the file is not one of this software."""
    leads = settings.node.role != "replica"
    primary = "" if leads else settings.replication.primary
    by_settings = Role(leads, primary, configured=f"{settings.node.role} {primary}".rstrip())
    path = data_dir / NAME
    if not path.exists():
        return by_settings
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        kept = Role(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FailedPrecondition(
            f"{path} cannot be read: {error}",
            hint="it says which node is primary; a newer version may have written it",
        ) from error
    if kept.configured != by_settings.configured:
        log.warning(
            "the configuration says %s now, it was %s: what %s remembers is given up",
            by_settings.configured,
            kept.configured,
            path,
        )
        return replace(by_settings, fence=kept.fence)
    if kept.leads != leads:
        was = "promoted" if kept.leads else f"told to follow {kept.primary}"
        log.warning("node.role is %s, but this node was %s", settings.node.role, was)
    return kept


def write_role(data_dir: Path, role: Role) -> None:
    """Remembers it; on disk when this returns."""
    temporary = data_dir / f"{NAME}.new"
    # One that a crash has left may be finished, and so not to be written to.
    temporary.unlink(missing_ok=True)
    fields = asdict(role)
    if not role.forcing:
        del fields["forcing"]  # versions that do not know it read what is written else
    temporary.write_text(json.dumps({"format": _FORMAT, **fields}) + "\n", encoding="utf-8")
    publish(temporary, data_dir / NAME)
