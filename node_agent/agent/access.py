"""How the API server is reached, for all parts that do."""

from node_agent.config.settings import Settings
from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access
from node_agent.kube.find import find_access


def access_of(settings: Settings) -> Access:
    """The way to the API server, by the kubeconfig that the settings name or from inside the cluster.

    Raises:
        KubeAccessError: there is no way, or no name of the node, without which there is nothing to be done there.
    """
    access = find_access(settings.kubeconfig)
    if not settings.node_name:
        raise KubeAccessError("the node's name is not known: set NODE_NAME, from spec.nodeName of the pod")
    return access
