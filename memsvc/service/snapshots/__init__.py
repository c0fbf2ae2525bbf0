"""Snapshots: taking, keeping, checking and restoring them. See DESIGN.md beside this file."""
