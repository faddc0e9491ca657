"""The node's part of NVIDIA's ComputeDomains: a DRA driver of its own, for IMEX channels and the daemons behind them.

NVIDIA's controller makes the objects: for each domain two templates of claims and a DaemonSet. A workload's claim (a
*channel*) sets a label on its node that attracts the domain's daemon, and waits until that says that it is ready; the
daemon's own claim gives it its settings. ``claims`` does that, ``domains`` speaks with the API server, ``record`` keeps
what was given out, ``edits`` says what containers get, and ``pool`` what is published.

Nothing below knows of this package; above it do ``agent/compute_domains.py``, and the doctor its driver's name.
"""
