"""The one call that tells the kubelet of a device plugin, and the kubelets that do not take it."""

import asyncio
import socket
from pathlib import Path

import pytest

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kubelet import registration
from node_agent.kubelet.registration import KUBELET_SOCKET, register
from node_agent.kubelet.server import serving
from tests.unit.kubelet.fakes import RESOURCE, FakeKubelet


async def test_the_kubelet_hears_the_version_the_socket_and_the_resource(folder: Path) -> None:
    kubelet = FakeKubelet()
    async with serving(folder / KUBELET_SOCKET, kubelet.add_to, grace=0):
        await register(folder, "gpu-1.sock", RESOURCE)
    (request,) = kubelet.requests
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "gpu-1.sock", RESOURCE)


async def test_without_a_kubelet_the_error_names_the_socket_that_nobody_serves(folder: Path) -> None:
    with pytest.raises(KubeletError, match=rf"no kubelet answers on {folder}/kubelet\.sock: UNAVAILABLE") as caught:
        await register(folder, "gpu-1.sock", RESOURCE)
    assert not isinstance(caught.value, RegistrationRefused)


async def test_a_socket_of_a_kubelet_that_died_counts_as_no_kubelet(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / KUBELET_SOCKET))
    with pytest.raises(KubeletError, match="no kubelet answers"):
        await register(folder, "gpu-1.sock", RESOURCE)


async def test_a_kubelet_that_hangs_is_given_up_after_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TIMEOUT_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / KUBELET_SOCKET))
        deaf.listen()
        async with asyncio.timeout(30):
            with pytest.raises(KubeletError, match="no kubelet answers"):
                await register(folder, "gpu-1.sock", RESOURCE)


async def test_a_refusal_says_what_was_refused_and_why(folder: Path) -> None:
    async with serving(folder / KUBELET_SOCKET, FakeKubelet(refusal="invalid resource").add_to, grace=0):
        with pytest.raises(RegistrationRefused, match=r"refused nvidia\.com/gpu at gpu-1\.sock: .*invalid resource"):
            await register(folder, "gpu-1.sock", RESOURCE)
