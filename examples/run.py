"""Builds the example of a language, has it hold the conversation, and compares its answers.

python examples/run.py go                    with a primary and a replica of its own
python examples/run.py go --nodes HOST:PORT,HOST:PORT --token TOKEN
python examples/run.py --stubs go            only generates the stubs, and says where
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.group import Group
from examples.languages import EXAMPLES, LANGUAGES, BuildError

SCRIPT, ANSWERS = EXAMPLES / "conversation.json", EXAMPLES / "answers.jsonl"
RUN_S = 120.0


def converse(
    language: str, nodes: str, token: str, script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    """Runs a built example, in the name of a new agent."""
    return subprocess.run(
        [*LANGUAGES[language].command(), str(script)],
        check=False,
        env={
            **os.environ,
            "MEMSVC_NODES": nodes,
            "MEMSVC_TOKEN": token,
            "MEMSVC_AGENT": f"{language}-{time.time_ns()}",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=RUN_S,
    )


def tell(text: str) -> None:
    """To people; standard output is for answers."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("language", choices=sorted(LANGUAGES))
    parser.add_argument("--stubs", action="store_true", help="only generate the stubs")
    parser.add_argument("--nodes", help="addresses of running nodes, separated by commas")
    parser.add_argument(
        "--token", default="", help="may read, write and forget in the tenant 'examples'"
    )
    given = parser.parse_args()
    language = LANGUAGES[given.language]
    begin = time.monotonic()
    try:
        (language.stubs if given.stubs else language.build)()
    except BuildError as error:
        tell(str(error))
        return 1
    tell(f"built in {time.monotonic() - begin:.0f} s; the stubs are in {language.stubs_at()}")
    if given.stubs:
        return 0
    if given.nodes:
        result = converse(given.language, given.nodes, given.token)
    else:
        with tempfile.TemporaryDirectory() as folder, Group(Path(folder)) as group:
            result = converse(given.language, group.nodes, group.token)
    sys.stdout.write(result.stdout)
    tell(result.stderr)
    if result.returncode:
        return result.returncode
    if not given.nodes and result.stdout != ANSWERS.read_text(encoding="utf-8"):
        tell(f"these are not the answers of {ANSWERS}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
