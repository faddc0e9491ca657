"""Cutting the node's GPUs as a named layout says: the work of NVIDIA's MIG manager, without pausing anybody.

``orders`` what is wanted, and who says so · ``usage`` who has what of a GPU · ``reserved`` what a change keeps from the
front doors · ``changes`` one GPU's way, step by step, and back · ``layouts`` all GPUs of the node, again and again ·
``state`` what came of it · ``label`` the label that says so · ``room`` merging idle partitions for what is to fit. What
fits, and which steps lead there, is decided in ``partition``.
"""
