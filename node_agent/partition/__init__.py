"""Cutting GPUs into partitions (MIG): what fits, what is wanted, and which steps lead there. All of it is pure.

``names`` how profiles are spelled in Kubernetes · ``layout`` the rules of one GPU model · ``choose`` where a partition
goes · ``configs`` the file of named layouts · ``static`` what such a layout comes to on a GPU · ``plan`` the steps from
what lies there to what is wanted · ``counters`` what is published of a GPU that can be cut · ``defragment`` making room
by merging what is idle. What acts on the hardware is ``hardware/nvml/partitions``.
"""
