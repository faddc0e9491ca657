"""What the node says of itself, all derived from the inventory, the health board and the services' states.

``status`` the one document behind ``node-agent status`` and the readiness · ``health`` the one of the GPUs' health,
``health_view`` the present one and its changes · ``server`` serves both over HTTP, ``health_service`` the latter over
gRPC · ``node_condition`` and ``node_events`` what Kubernetes is told of health, ``node_reporter`` writes it ·
``labels`` what selectors and schedulers read of the node · ``parts``, ``readiness`` and ``readiness_watch`` whether the
agent can do its work · ``overview`` GPUs and who uses them, ``page`` for a browser with ``page_graph``, ``page_style``
and ``html``, ``page_routes`` serves it.
"""
