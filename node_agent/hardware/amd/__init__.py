"""AMD's GPUs, as far as the kernel's module amdgpu tells of them in /sys: no library is needed, and none is loaded.

``scan`` finds the GPUs, ``links`` how they reach each other, ``readings`` how they are; ``provider`` puts these behind
the Protocols, on a thread of its own. The files are those of the kernel's documentation of amdgpu (``driver-misc``,
``ras``, ``thermal``) and of the topology of KFD, the part of it that computes.
"""
