"""Which GPUs belong together, decided from one inventory: pure functions, no I/O.

``pairs`` says what each pair of GPUs is worth, ``groups`` finds aligned groups of 2, 4 and 8, and ``score`` states the
objective for a set of GPUs. ``search`` finds the best set exactly; ``preferred`` answers the kubelet's question with it
and ``explain`` says why. ``render`` prints the links as a table; ``drawing`` draws them, as lines that ``wires`` names.
Between these modules a set of GPUs is a bit mask: bit ``i`` stands for GPU ``i`` of the inventory.
"""
