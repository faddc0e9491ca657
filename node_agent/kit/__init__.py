"""Domain-free building blocks: nothing here knows of GPUs, Kubernetes or NVML.

``latest`` a value and its changes · ``lane`` blocking calls on one thread · ``tasks`` cancel and wait ·
``backoff`` growing pauses · ``alone`` one process at a time · ``files`` atomic, durable writes · ``sealed`` content
under a checksum · ``boot`` which boot this is · ``programs`` what runs beside the agent · ``unix`` socket paths ·
``logs`` events with facts · ``http`` a small server, ``http_client`` its client.
"""
