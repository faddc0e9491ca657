"""The Kubernetes API, as plain dicts over HTTP: few verbs, and retries in one place.

    find, kubeconfig ──► access ──► credentials ──► transport ──► calls ──► client ──► mirror

``find`` looks for the API server and says with ``access`` how it is reached; ``credentials`` reads the files that this
names, ``transport`` has the connections, ``calls`` tries again and turns refusals into errors (``answers``), ``client``
has the verbs for what ``resources`` names, and ``mirror`` keeps a copy of what is watched.
"""
