"""memsvc in the clothes of others: what agent frameworks and protocols expect of a memory, on top
of the Python client. Each part needs an extra of its own and is imported by whoever wants it."""
