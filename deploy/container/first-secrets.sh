#!/bin/sh
# Makes what the nodes of compose.yaml share and nobody else knows, if it is not there yet: the
# secret between them, and the token of the operator, in files that their user alone can read.
set -eu
umask 077
cd "${1:-/etc/memsvc/auth}"
if [ ! -s replication-token ]; then
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > replication-token.new
  mv replication-token.new replication-token
fi
if [ ! -s tokens.yaml ]; then
  memsvc token add ops -p "*" -r admin -r read -r write -r forget -r review \
    --file tokens.yaml > ops-token.new
  mv ops-token.new ops-token
fi
