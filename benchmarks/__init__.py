"""What ``make bench`` runs: how fast and how small the agent is, in one table.

Machines differ and are noisy, so each figure is a ratio to a floor that was measured in turns with it: what the same
machine needs for the least that could do the job. ``measure`` takes the figures, ``table`` shows them, ``machine`` says
where they were taken; ``floors`` are the floors, ``inside`` and ``process`` the agent, in this process or in one of its
own; what is measured is in ``subjects``, a module each.
"""
