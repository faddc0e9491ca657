"""The names that the driver goes by in the API."""

DRIVER = "gpu.nvidia.com"
"""The driver's name, and the domain of the attributes and taint keys that are its own."""
