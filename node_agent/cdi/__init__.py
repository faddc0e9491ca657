"""CDI specs: what a container runtime adds to a container so that it can use the GPUs it was given.

``roots`` where the driver, /dev and sysfs are, for the agent and for the host · ``nodes`` the device nodes that exist ·
``driver`` the driver's files: ``libraries`` (``elf`` and ``ldcache`` read what the loader reads) and other ``files``,
as ``catalogue`` lists them · ``hooks`` the container toolkit's hook program, where it is installed · ``build`` makes
edits and specs of all that, and says what is ``left_out`` · ``edits`` the values of the format, ``names`` its names,
``versions`` its history · ``validate`` checks, ``writer`` writes.

The format as a JSON schema is ``cdi/schema`` at the top of the clone, one spec for each shape of node ``cdi/examples``.
"""
