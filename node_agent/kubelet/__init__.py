"""Talking with the kubelet: sockets, registration, and noticing its restarts.

``server`` serves gRPC on a Unix socket of the agent's own · ``registration`` tells the kubelet about it, or
``announcement`` lets it find out; ``routes`` puts either behind one interface ·
``embedded`` is the kubelet's side of the device plugin protocol, for a machine that has none (demo and tests).
"""
