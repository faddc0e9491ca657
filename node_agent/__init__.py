"""One process per GPU node: see docs/dev/architecture.md for the map."""
