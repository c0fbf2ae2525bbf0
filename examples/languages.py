"""How the example of each language is built and run, with the usual tools of that language.

What is downloaded and what is large stays outside of the sources: in the caches that the tools
have anyway, and in ``cache()``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent
PROTOS = ("memsvc/v1/memory_service.proto", "memsvc/v1/types.proto")


class BuildError(Exception):
    """A step of a build failed; the message is what its tool printed."""


@dataclass(frozen=True)
class Language:
    """One example: what makes its stubs, what builds it, the command that runs it, and where the
    stubs are then."""

    stubs: Callable[[], None]
    build: Callable[[], None]
    command: Callable[[], list[str]]
    stubs_at: Callable[[], Path]


def cache() -> Path:
    """Where builds keep what is large: MEMSVC_EXAMPLES_CACHE, or a folder of the user's cache."""
    given = os.environ.get("MEMSVC_EXAMPLES_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(given) if given else Path(user) / "memsvc-examples"


def tool(*command: str | Path, folder: Path, **env: str) -> None:
    """Runs a tool; silent when it succeeds."""
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words,
            check=False,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is not installed, or not in PATH") from None
    if result.returncode:
        what = f"{' '.join(words)} (in {folder}) ended with {result.returncode}"
        raise BuildError(f"{what}:\n{result.stdout}")


def outdated(stamp: Path, *sources: Path) -> bool:
    """False when ``done`` was called last for the same sources."""
    return not stamp.exists() or stamp.read_text() != _digest(*sources)


def done(stamp: Path, *sources: Path) -> None:
    """Notes that what is made from ``sources`` is there."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(_digest(*sources))


def _digest(*sources: Path) -> str:
    return hashlib.sha256(b"\0".join(one.read_bytes() for one in sources)).hexdigest()


# -- Python: grpcio-tools, in an environment of its own --------------------------------------

PYTHON = EXAMPLES / "python"


def _python() -> Path:
    return cache() / "python" / "bin" / "python"


def python_stubs() -> None:
    stamp, wanted = cache() / "python" / "installed", PYTHON / "requirements.txt"
    if outdated(stamp, wanted):
        tool(sys.executable, "-m", "venv", "--clear", cache() / "python", folder=PYTHON)
        tool(_python(), "-m", "pip", "install", "-q", "--only-binary", ":all:", "-r", wanted,
             folder=PYTHON)  # fmt: skip
        done(stamp, wanted)
    stubs = PYTHON / "stubs"
    stubs.mkdir(exist_ok=True)
    tool(_python(), "-m", "grpc_tools.protoc", "-I", ROOT / "protos", f"--python_out={stubs}",
         f"--pyi_out={stubs}", f"--grpc_python_out={stubs}", *PROTOS, folder=PYTHON)  # fmt: skip


def python_command() -> list[str]:
    return [
        "env",
        f"PYTHONPATH={PYTHON / 'stubs'}",
        str(_python()),
        str(PYTHON / "conversation.py"),
    ]


# -- Go: buf with protoc-gen-go and protoc-gen-go-grpc, which are tools of the module ---------

GO = EXAMPLES / "go"


def go_stubs(out: Path = GO) -> None:
    """Only needed when protos/ changed: the stubs are committed."""
    buf = Path(sys.executable).parent / "buf"
    tool(buf, "generate", ROOT, "--path", ROOT / "protos" / "memsvc" / "v1", "-o", out, folder=GO)


def go_build() -> None:
    tool("go", "build", "-o", cache() / "go" / "conversation", ".", folder=GO)


def go_command() -> list[str]:
    return [str(cache() / "go" / "conversation")]


# -- TypeScript: buf with ts-proto, both from the npm registry ----------------------------------

TYPESCRIPT = EXAMPLES / "typescript"


def _npm_install() -> None:
    installed = TYPESCRIPT / "node_modules" / ".memsvc"
    wanted = TYPESCRIPT / "package-lock.json"
    if outdated(installed, wanted):
        tool("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=TYPESCRIPT)
        done(installed, wanted)


def typescript_stubs() -> None:
    _npm_install()
    tool("npm", "run", "stubs", folder=TYPESCRIPT)


def typescript_build() -> None:
    _npm_install()
    tool("npm", "run", "build", folder=TYPESCRIPT)


def typescript_command() -> list[str]:
    return ["node", str(TYPESCRIPT / "dist" / "main.js")]


# -- Rust: tonic-prost-build, called by build.rs with protox in place of protoc ----------------

RUST = EXAMPLES / "rust"


def rust_build() -> None:
    tool("cargo", "build", "-q", "--locked", folder=RUST, CARGO_TARGET_DIR=str(cache() / "rust"))


def rust_command() -> list[str]:
    return [str(cache() / "rust" / "debug" / "memsvc-conversation")]


def rust_stubs_at() -> Path:
    made = (cache() / "rust" / "debug" / "build").glob("memsvc-conversation-*/out/memsvc.v1.rs")
    return max(made, key=lambda path: path.stat().st_mtime)


# -- Java: Maven with the protobuf plugin, which fetches protoc and the generator of services ---

JAVA = EXAMPLES / "java"


def java_stubs() -> None:
    tool("mvn", "-q", "-B", "generate-sources", folder=JAVA)


def java_build() -> None:
    tool("mvn", "-q", "-B", "process-classes", folder=JAVA)


def java_command() -> list[str]:
    libraries = f"{JAVA}/target/classes:{JAVA}/target/lib/*"
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", libraries, "memsvc.example.Conversation"]


LANGUAGES = {
    "python": Language(python_stubs, python_stubs, python_command, lambda: PYTHON / "stubs"),
    "go": Language(go_stubs, go_build, go_command, lambda: GO / "gen"),
    "typescript": Language(
        typescript_stubs, typescript_build, typescript_command, lambda: TYPESCRIPT / "src" / "gen"
    ),
    "rust": Language(rust_build, rust_build, rust_command, rust_stubs_at),
    "java": Language(
        java_stubs, java_build, java_command, lambda: JAVA / "target" / "generated-sources"
    ),
}
