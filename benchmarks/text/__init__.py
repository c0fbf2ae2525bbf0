"""Measurements behind the choices in memsvc.text."""
