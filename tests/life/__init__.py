"""A long life of the agent in minutes: what it keeps of thousands of pods, claims, faults, reloads and restarts.

``__main__`` is the load and its figures, ``told`` the agent's own process, which tells what its memory consists of.
"""
