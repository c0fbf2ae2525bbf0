"""Networks for scenario tests: a namespace for each node, on a switch with cables to pull."""

from __future__ import annotations

import secrets
import subprocess
from contextlib import suppress


class Switch:
    """Nodes on a network of their own; a context manager.

    Each node has an address among the others, on a cable that ``cut`` pulls, and another that the
    test reaches whatever happens. Needs the right to make network namespaces.
    """

    def __init__(self) -> None:
        self._tag = f"ms{secrets.token_hex(2)}"
        self._subnet = secrets.randbelow(200) + 20
        self._count = 0
        self._numbers: dict[str, int] = {}
        _ip("link", "add", "name", self._tag, "type", "bridge")
        _ip("link", "set", self._tag, "up")

    def plug(self, name: str) -> tuple[str, str]:
        """Adds a node; its address among the others, and the one for the test."""
        self._count += 1
        number = self._numbers[name] = self._count
        space = self.space(name)
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
        group, test = f"10.{self._subnet}.0.{number}", f"10.{self._subnet}.{number}"
        self._cable(self._group_end(number), space, "group", f"{group}/24")
        _ip("link", "set", self._group_end(number), "master", self._tag)
        self._cable(self._test_end(number), space, "test", f"{test}.2/30")
        _ip("addr", "add", f"{test}.1/30", "dev", self._test_end(number))
        return group, f"{test}.2"

    def space(self, name: str) -> str:
        """The network namespace of a node."""
        return f"{self._tag}-{name}"

    def cut(self, name: str) -> None:
        """Pulls a node's cable: no other node reaches it, and nothing tells them."""
        _ip("link", "set", self._group_end(self._numbers[name]), "down")

    def heal(self, name: str) -> None:
        """Puts it back."""
        _ip("link", "set", self._group_end(self._numbers[name]), "up")

    def _cable(self, outside: str, space: str, inside: str, address: str) -> None:
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
        _ip("link", "set", outside, "up")
        _ip("-n", space, "addr", "add", address, "dev", inside)
        _ip("-n", space, "link", "set", "dev", inside, "up")

    def _group_end(self, number: int) -> str:
        return f"{self._tag}g{number}"

    def _test_end(self, number: int) -> str:
        return f"{self._tag}t{number}"

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):
            _ip("link", "del", self._tag)
        for name, number in self._numbers.items():
            # The cables go with the namespace, unless a process still holds it.
            for step in (
                ("link", "del", self._group_end(number)),
                ("link", "del", self._test_end(number)),
                ("netns", "del", self.space(name)),
            ):
                with suppress(RuntimeError):
                    _ip(*step)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
