"""What the node says of itself, all derived from the inventory, the health board and the services' states.

``status`` the one document behind ``node-agent status`` and the health endpoints · ``server`` serves it over HTTP ·
``labels`` what selectors and schedulers read of the node.
"""
