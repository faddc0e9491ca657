"""One process per GPU node: see docs/dev/architecture.md for the map."""

__version__ = "0.1.0"
