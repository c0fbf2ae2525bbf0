"""Long-term memory for the Hermes agent (PyPI: hermes-agent); see docs/howto/hermes.md.

``plugin`` is what Hermes loads, by an entry point or from a folder that ``memsvc hermes install``
makes; everything it does is here. Nothing in this package imports gRPC or numpy before a session
begins, since Hermes imports every provider to list them.
"""
