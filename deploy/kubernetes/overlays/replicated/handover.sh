#!/bin/sh
# Before a node ends: if it is the primary it hands over to a replica, those of the highest number
# first, which a rolling update has replaced already. Then it waits until no proxy sends calls
# here any more. When nobody can take over, the node ends all the same.
#
# From the pod: POD_NAME; NODES, the addresses of all for clients, in the order of the pods;
# CA_FILE, if they use TLS; and the token of the operator in a file.
set -u
MEMSVC_TOKEN=$(cat /etc/memsvc/auth/ops-token) && export MEMSVC_TOKEN
own=
others=
for node in $NODES; do
  case $node in
    "$POD_NAME".*) own=$node ;;
    *) others="$node $others" ;;
  esac
done
if memsvc health --json --address "$own" --ca-file "${CA_FILE:-}" | grep -q '"role": "PRIMARY"'; then
  for node in $others; do
    timeout 20 memsvc promote --address "$node" --ca-file "${CA_FILE:-}" && break
  done
fi
sleep 5
