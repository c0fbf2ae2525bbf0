#!/bin/sh
# Starts a node of the group. The first one begins as primary, the others as its replicas. What a
# promotion decided later is in the file ROLE of the data directory and wins, as long as nothing
# here changes; a node that has lost its disk follows whoever leads.
#
# From the pod: POD_NAME, POD_NAMESPACE, and CA_FILE, if nodes use TLS. Arguments: those of memsvc.
set -eu
group=${POD_NAME%-*}
export MEMSVC_REPLICATION__ADVERTISE="$POD_NAME.$group-nodes.$POD_NAMESPACE.svc:8848"
if [ "$POD_NAME" = "$group-0" ]; then
  export MEMSVC_NODE__ROLE=primary
else
  export MEMSVC_NODE__ROLE=replica
  export MEMSVC_REPLICATION__PRIMARY="$group-0.$group-nodes:8850"
fi
if [ -n "${CA_FILE:-}" ]; then
  export MEMSVC_REPLICATION__CA_FILE="$CA_FILE"
fi
exec memsvc "$@"
