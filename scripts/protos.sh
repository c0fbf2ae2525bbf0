#!/usr/bin/env bash
# Generates the Python stubs (messages, services, types) from protos/ into the repository.
#   scripts/protos.sh           write them
#   scripts/protos.sh --check   fail when the committed stubs differ from what protos/ gives
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}
# The type plugins are found through PATH.
PATH="$(cd "$bin" && pwd):$PATH"

generate() { # generate OUT
  local out=$1 file dir
  local -a protos
  mapfile -t protos < <(cd protos && find memsvc -name '*.proto' | LC_ALL=C sort)
  [ "${#protos[@]}" -gt 0 ] || { echo "no .proto files under protos/memsvc" >&2; exit 1; }
  "$bin/python" -m grpc_tools.protoc --proto_path=protos \
    --python_out="$out" --grpc_python_out="$out" \
    --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" "${protos[@]}"
  for file in "${protos[@]}"; do
    # Files without a service get an empty _pb2_grpc.py; it is noise.
    if ! grep -q '^service ' "protos/$file"; then
      rm -f "$out/${file%.proto}_pb2_grpc.py" "$out/${file%.proto}_pb2_grpc.pyi"
    fi
    # Each folder on the way is a package.
    dir=$(dirname "$file")
    while [ "$dir" != "memsvc" ] && [ "$dir" != "." ]; do
      [ -e "$out/$dir/__init__.py" ] || : > "$out/$dir/__init__.py"
      dir=$(dirname "$dir")
    done
  done
}

stubs() { # list generated files below DIR
  (cd "$1" && find memsvc -name '*_pb2*.py*' -not -name '*.pyc' | LC_ALL=C sort)
}

if [ "${1:-}" = "--check" ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  generate "$tmp"
  status=0
  diff <(stubs .) <(stubs "$tmp") || status=1
  while read -r file; do
    cmp -s "$file" "$tmp/$file" || { echo "differs: $file" >&2; status=1; }
  done < <(stubs "$tmp")
  if [ "$status" -ne 0 ]; then
    echo "generated stubs do not match protos/: run 'make protos' and commit the result" >&2
  fi
  exit "$status"
fi

find memsvc -name '*_pb2*.py*' -delete
generate .
