"""The DRA driver: the front door for pods with ResourceClaims.

What is offered: ``attributes``, ``values`` and ``taints`` describe a device, ``withheld`` says which are held unseen,
``slices`` lays out the node, ``pool`` keeps that in mind, ``features`` and ``writes`` say what has to be sent,
``publisher`` sends it through ``store``.

What is given out: ``server`` brings ``servicer`` and ``health`` to the kubelet, ``claims`` and ``configs`` read what
was allocated, ``operations`` prepares it, ``metadata`` and ``status`` tell the pod and the API.
"""
