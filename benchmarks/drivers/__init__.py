"""A compiled generator of gRPC load: one in Python takes as much of the cores as the server."""
