"""Who holds which GPU, for both front doors, and the way from an allocated claim to a usable one.

``grants`` are the values, ``conflicts`` says who stands in whose way, ``changes`` what a change makes of the books:
these are pure. ``ledger`` keeps them and ``checkpoint`` their durable copy; ``prepare`` makes a claim's devices usable
and undoes that, with the claim's CDI spec from ``specs``.
"""
