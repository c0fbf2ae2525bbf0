"""The panel of settings in Hermes' desktop application and dashboard."""

from __future__ import annotations

from typing import Any

from plugins.memory.config_schema import (
    KIND_SECRET,
    KIND_SELECT,
    KIND_TEXT,
    ProviderConfigSchema,
    ProviderField,
    ProviderFieldOption,
)

from memsvc.integrations.hermes.settings import NAME, TOKEN_VARIABLE
from memsvc.integrations.hermes.setup import schema


def _field(asked: dict[str, Any]) -> ProviderField:
    choices = asked.get("choices") or ()
    secret = bool(asked.get("secret"))
    return ProviderField(
        key=str(asked["key"]),
        label=str(asked["key"]).capitalize(),
        kind=KIND_SECRET if secret else KIND_SELECT if choices else KIND_TEXT,
        default=str(asked.get("default", "")),
        description=str(asked["description"]),
        options=tuple(ProviderFieldOption(one, one) for one in choices),
        env_key=TOKEN_VARIABLE if secret else None,
        inline=True,
    )


CONFIG_SCHEMA = ProviderConfigSchema(
    name=NAME, label="memsvc", fields=tuple(_field(asked) for asked in schema())
)
