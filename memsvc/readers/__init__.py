"""Reader processes: more cores for Query, on the same port and the same files."""
