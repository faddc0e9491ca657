"""All instruments of the agent. Like a logger, each is the process's own, and used where something happens."""

from node_agent.telemetry.instruments import Count, Instrument, Timing

ALLOCATIONS = Timing(
    name="node_agent_allocation_seconds",
    help="What Allocate of the device plugin took, for each resource.",
    labels=("resource", "result"),
)

CLAIM_OPERATIONS = Timing(
    name="node_agent_claim_operation_seconds",
    help="What preparing and unpreparing a claim took, with all its tries.",
    labels=("operation", "result"),
)

API_REQUESTS = Timing(
    name="node_agent_api_request_seconds",
    help="What a call to the API server took, with all its tries; slices are written by create, update and delete.",
    labels=("verb", "resource", "result"),
)

WATCH_RESTARTS = Count(
    name="node_agent_watch_restarts_total",
    help="How often a watch on the API server began again, also in order.",
    labels=("resource",),
)

INSTRUMENTS: tuple[Instrument, ...] = (ALLOCATIONS, CLAIM_OPERATIONS, API_REQUESTS, WATCH_RESTARTS)
