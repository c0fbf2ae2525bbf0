#!/usr/bin/env bash
# Writes requirements.lock: every package of every extra, pinned, for Python 3.11.
# The file is used as constraints (`pip install -c requirements.lock -e ...`), so that
# what is installed is what was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}

{
  echo "# Made by scripts/lock.sh from pyproject.toml; used as pip constraints."
  "$bin/pip-compile" --quiet --all-extras --strip-extras --upgrade --no-header \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate \
    --no-emit-options --pip-args "--only-binary :all:" --output-file - pyproject.toml
} | sed -e '/^# The following packages/,$d' -e '/^$/d' > requirements.lock.new
mv requirements.lock.new requirements.lock
