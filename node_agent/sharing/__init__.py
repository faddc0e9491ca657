"""One GPU for several: ``shares`` says which GPUs are shared, and how.

Under time-slicing ``time_slices`` keeps how long turns are, and ``smi`` sets it.
"""
