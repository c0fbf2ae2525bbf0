#!/bin/sh
# Before a node ends: if it is the primary it hands over to a replica, those of the highest number
# first, which a rolling update has replaced already. Then it waits until no proxy sends calls
# here any more. When nobody can take over, the node ends all the same.
#
# From the pod: POD_NAME; NODES, the addresses of all for clients, in the order of the pods;
# CALL_OPTIONS, what their calls need for TLS; and the token of the operator in a file.
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
# Unquoted: several options, or none.
# shellcheck disable=SC2086
if memsvc health --json --address "$own" ${CALL_OPTIONS:-} | grep -q '"role": "PRIMARY"'; then
  for node in $others; do
    timeout 20 memsvc promote --address "$node" ${CALL_OPTIONS:-} && break
  done
fi
sleep 5
