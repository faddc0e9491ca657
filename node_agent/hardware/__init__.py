"""The hardware of one node behind vendor-neutral Protocols."""
