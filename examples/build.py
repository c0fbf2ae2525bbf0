"""Builds the examples of all languages, or of those that are named.

python examples/build.py [LANGUAGE...]

Needs the tools of these languages, and nothing beside Python.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.languages import LANGUAGES, BuildError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=", ".join(LANGUAGES))
    names = parser.parse_args().languages or list(LANGUAGES)
    if unknown := sorted(set(names) - set(LANGUAGES)):
        parser.error(f"there is no example in {', '.join(unknown)}")
    for name in names:
        begin = time.monotonic()
        try:
            LANGUAGES[name].build()
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name}: built in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
