"""The Kubernetes API, as plain dicts over HTTP: few verbs, and retries in one place.

``access`` finds the server and who we are, ``resources`` names what it stores, ``client`` asks it over ``transport``,
``answers`` turns what it refuses into errors, and ``mirror`` keeps a local copy of what is watched.
"""
