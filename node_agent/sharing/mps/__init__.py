"""MPS: daemons that clients of shared devices go through, so that each may have its limits.

``plan`` says what a daemon is and what its clients need; ``records`` keeps on disk who uses which; ``control`` talks to
one and ``processes`` to the kernel about it; ``place`` makes and clears its folders. ``daemon`` keeps one running,
``daemons`` all of the node.
"""
