"""What ``make bench-cluster`` runs: the agents of a whole cluster, against a real API server, etcd and scheduler.

``control_plane`` starts these, on a machine of the node tests' rig; no kubelet runs, so Nodes are objects and no more.
``agents`` is a process with what many nodes' agents have to do with the API server, the agent's own classes over
simulated inventories; ``crowd`` starts and commands such processes, and ``requests`` tells from the API server's audit
log what they have asked and when. ``publishing`` and ``scheduling`` are the measurements, ``layouts`` the ways in which
a node's devices could be published, and ``model`` says what follows for more nodes than fit on one machine.
"""
