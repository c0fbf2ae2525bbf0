"""A read replica: bootstrap, follow, apply, serve."""
