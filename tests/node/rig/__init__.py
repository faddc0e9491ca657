"""A real Kubernetes node for tests: ``node.RealNode``. ``__main__`` runs one by hand, the fixtures are in conftest.py.

From the bottom up: ``waiting`` (time limits and the error) and ``command``; ``packages`` and ``binaries`` (what must be
installed and built); ``traces``, ``program`` and ``machine`` (where a node runs); ``image``, ``credentials`` and
``components`` (what it is made of); ``api`` and ``pods`` (what a test does with it); ``node`` (all of it together).
"""
