"""The front door for pods with limits: the kubelet's device plugin API.

A grant's way: ``servicer`` takes the kubelet's call, ``preferred`` answers which devices to give, ``answer`` says how
the container gets them. ``offer`` decides what is in the list; ``server`` keeps one resource served and registered.
"""
