"""The front door for pods with limits: the kubelet's device plugin API.

A grant's way: ``servicer`` takes the kubelet's calls, asks ``topology`` which devices to give, and ``answer`` says how
the container gets them. ``offer`` decides what is in the list, ``plugin`` keeps it true, ``server`` keeps it served and
registered.
"""
