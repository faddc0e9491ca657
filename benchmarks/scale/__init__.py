"""What ``make bench-cluster`` runs: a cluster of nodes with GPUs, for a real scheduler.

``control_plane`` starts API server, etcd and scheduler on a machine of the node tests' rig; no kubelet runs, so Nodes
are objects and no more. ``layouts`` are the ways in which a node's devices could be published, ``scheduling`` measures
what each costs the scheduler.
"""
