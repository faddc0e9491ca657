"""Examines a node from driver to registration, and names the fix for what fails.

``finding`` is what a check says, ``place`` where it looks; ``driver``, ``gpus``, ``cdi``, ``kubelet``, ``owners``,
``cluster``, ``machine`` and ``running`` have the checks, and ``examine`` makes them all. Nothing is changed by any of
them, and none needs an agent that runs.
"""
