"""The agent killed anywhere: SIGKILL at each boundary that it crosses to the world around it, and what is so then.

``boundaries`` counts and kills inside the agent's process, ``hardware`` outlives it, ``nursery`` starts agents quickly.
``site`` is the node around them, ``operations`` what is done on it, ``invariants`` what always holds; ``points`` kills
an operation at each of its boundaries, and walks at random. ``make crash`` runs all of it.
"""
