"""Claims to domains: who is let in, when a workload may start, what its containers get, and what is left at the end.

The contract is that of NVIDIA's controller and daemon (DRA driver 0.5.0-dev of August 2026)."""

import asyncio
from itertools import repeat
from pathlib import Path

import pytest

from node_agent.computedomain.names import CLIQUES, DOMAINS, LABEL
from node_agent.errors import (
    ClaimConfigInvalid,
    ClaimUnreadable,
    DeviceHeld,
    DomainNotReady,
    DomainRefused,
    KubeError,
    NodeAgentError,
    NotFound,
    Overtaken,
    PoolUnknown,
    UnknownDevice,
)
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, Object
from node_agent.model.inventory import Inventory
from tests.fakes.api_store import Matches, Place
from tests.unit.computedomain.world import CLIQUE, NODE, SYSTEM, TEAM, config, rack, world


async def test_a_workload_labels_its_node_and_waits_for_the_daemon_that_comes_there(tmp_path: Path) -> None:
    async with world(tmp_path, tries=repeat(0.05)) as here:
        domain = here.domain()
        waiting = asyncio.create_task(here.prepare(here.channel(domain)))
        await here.server.until(lambda: here.label == domain)
        daemon = await here.prepare(here.daemon(domain))
        assert isinstance(daemon, tuple), "the daemon's claim is not held up by the one that waits for it"
        assert not waiting.done()
        here.ready(domain)
        (device,) = await asyncio.wait_for(waiting, 60)  # type: ignore[misc]
    assert (device.device, device.requests, device.pool) == ("channel-0", ("r",), NODE)
    assert len(device.cdi_ids) == 1


async def test_a_workload_gets_channel_0_by_the_drivers_numbers(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        (device,) = await here.prepare(ref)  # type: ignore[misc]
        (node,) = here.edits["deviceNodes"]
        (spec,) = here.specs
    assert (node["path"], node["major"]) == ("/dev/nvidia-caps-imex-channels/channel0", 236)
    assert device.cdi_ids == (f"{spec['kind']}={ref.uid}-channel-0",)
    assert spec["kind"] == "node-agent.compute-domain.nvidia.com/claim"


async def test_a_workload_may_have_every_channel_of_the_driver(tmp_path: Path) -> None:
    async with world(tmp_path, channels=8) as here:
        domain = here.ready_domain()
        await here.prepare(here.channel(domain, allocationMode="All"))
        assert [node["minor"] for node in here.edits["deviceNodes"]] == list(range(8))


async def test_the_domains_status_is_as_good_as_its_clique(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nodes = [{"name": NODE, "status": "Ready"}]
        body = {"metadata": {"name": "training", "namespace": TEAM}, "status": {"nodes": nodes}}
        domain = here.server.put(DOMAINS, body)["metadata"]["uid"]
        assert isinstance(await here.prepare(here.channel(domain)), tuple)


@pytest.mark.parametrize(("status", "node"), [("NotReady", NODE), ("Ready", "tray-2")])
async def test_nobody_starts_before_the_nodes_own_daemon_is_ready(tmp_path: Path, status: str, node: str) -> None:
    async with world(tmp_path) as here:
        domain = here.domain()
        here.ready(domain, status, node)
        answer = await here.prepare(here.channel(domain))
        assert isinstance(answer, DomainNotReady)
        assert f"{TEAM}/training is not ready on this node" in str(answer)
        assert (here.specs, here.label) == ([], domain), "the label stays, or no daemon would ever come"


async def test_outside_of_a_clique_a_workload_starts_without_a_channel(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.inventory.set(rack(None))
        domain = here.domain()
        nodes = [{"name": NODE, "status": "Ready"}]
        here.server.put(DOMAINS, {"metadata": {"name": "training", "namespace": TEAM}, "status": {"nodes": nodes}})
        (device,) = await here.prepare(here.channel(domain))  # type: ignore[misc]
        assert (device.cdi_ids, here.specs) == ((), [])


async def test_the_daemon_gets_its_domains_settings_a_folder_and_the_node_to_manage_channels(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.domain()
        (device,) = await here.prepare(here.daemon(domain))  # type: ignore[misc]
        edits, template = here.edits, (tmp_path / "domains" / domain / "imexd.cfg.tmpl").read_text()
    assert edits["env"] == [
        f"CLIQUE_ID={CLIQUE}",
        f"COMPUTE_DOMAIN_UUID={domain}",
        "COMPUTE_DOMAIN_NAME=training",
        f"COMPUTE_DOMAIN_NAMESPACE={TEAM}",
    ]
    (mount,) = edits["mounts"]
    assert (mount["containerPath"], mount["hostPath"]) == ("/imexd", str(tmp_path / "domains" / domain))
    assert "rw" in mount["options"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia-caps/nvidia-cap4323"]
    assert device.cdi_ids[1:] == ("node-agent.gpu.nvidia.com/gpu=all",), "with the driver's files and every GPU"
    assert "SERVER_PORT=50000\n" in template
    assert "IMEX_NODE_CONFIG_FILE={{.IMEXDaemonNodesConfigPath}}\n" in template


async def test_a_daemon_outside_of_a_clique_idles_with_an_empty_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.inventory.set(rack(None))
        await here.prepare(here.daemon(here.domain()))
        assert here.edits["env"][0] == "CLIQUE_ID="
        assert "deviceNodes" not in here.edits


# Who is refused


async def refused(tmp_path: Path, kind: type[NodeAgentError], message: str, **of: str) -> None:
    """A claim from another namespace or to another domain changes nothing."""
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        answer = await here.prepare(here.channel(of.get("domain", domain), of.get("namespace", TEAM)))
        assert isinstance(answer, kind)
        assert message in str(answer)
        assert (here.label, here.specs, await here.record.all()) == (None, [], [])


async def test_a_claim_from_another_namespace_never_gets_in(tmp_path: Path) -> None:
    await refused(tmp_path, DomainRefused, "in the namespace team-b, which is the claim's", namespace="team-b")


@pytest.mark.parametrize("namespace", [TEAM, "team-b", "nvidia-dra-driver-gpu-2"])
async def test_a_daemons_claim_from_anywhere_but_nvidias_controller_gets_no_gpu(tmp_path: Path, namespace: str) -> None:
    """Not even beside the domain: whoever may make claims there would have every GPU of the node."""
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.daemon(domain, namespace)
        answer = await here.prepare(ref)
        assert isinstance(answer, DomainRefused)
        assert ref.full_name in str(answer)
        assert "computeDomainNamespaces is dra-driver-nvidia-gpu or nvidia-dra-driver-gpu" in str(answer)
        assert (here.specs, await here.record.all(), (tmp_path / "domains").exists()) == ([], [], False)


async def test_nvidias_controller_is_known_by_its_old_namespace_and_by_its_new_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.domain()
        for namespace in ("dra-driver-nvidia-gpu", "nvidia-dra-driver-gpu"):
            ref = here.daemon(domain, namespace)
            assert isinstance(await here.prepare(ref), tuple)
            await here.unprepare(ref)


async def test_a_daemon_whose_namespace_is_no_longer_trusted_still_gives_back_what_it_held(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ref = here.daemon(here.domain())
        await here.prepare(ref)
        here.trusted.clear()
        assert isinstance(await here.prepare(ref), DomainRefused)
        assert await here.unprepare(ref) == ()
        assert (here.specs, await here.record.all()) == ([], [])


async def test_a_domain_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = "0b0f3a3e-0000-4000-8000-000000000000"
    await refused(tmp_path, DomainRefused, gone, domain=gone)


async def test_a_domain_id_that_is_no_uid_never_becomes_a_path(tmp_path: Path) -> None:
    await refused(tmp_path, ClaimConfigInvalid, "claim config[0].opaque.parameters.domainID", domain="../../etc")


async def test_without_nvidias_controller_the_kind_is_not_known_and_that_is_said(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.serve("resource.nvidia.com")
        answer = await here.prepare(here.channel("0b0f3a3e-0000-4000-8000-000000000000"))
        assert isinstance(answer, DomainRefused)
        assert "NVIDIA's controller" in str(answer)


async def test_a_node_serves_one_domain_at_a_time(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = here.domain("first"), here.domain("second")
        here.ready(first)
        here.ready(second)
        ref = here.channel(first)
        await here.prepare(ref)
        other = here.channel(second)
        answer = await here.prepare(other)
        assert isinstance(answer, DeviceHeld)
        assert f"{ref.full_name} in the ComputeDomain {first}" in str(answer)
        assert here.label == first
        await here.unprepare(ref)
        assert isinstance(await here.prepare(other), tuple)
        assert here.label == second


async def test_a_label_that_somebody_else_has_set_is_left_and_named(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.put(NODES, {"metadata": {"name": NODE, "labels": {LABEL: "other"}}})
        answer = await here.prepare(here.channel(here.domain()))
        assert isinstance(answer, DeviceHeld)
        assert f"take the label {LABEL} off the node" in str(answer)
        assert here.label == "other"


async def test_a_device_that_the_node_does_not_offer_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        parameters = config("ComputeDomainChannelConfig", here.domain())
        assert isinstance(await here.prepare(here.claim(parameters, "channel-7")), UnknownDevice)


async def test_while_the_gpus_are_not_known_a_claim_waits(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.inventory.set(Inventory())
        assert isinstance(await here.prepare(here.channel(here.domain())), PoolUnknown)
        assert here.label is None


# The end of a claim


async def test_the_last_claim_takes_label_spec_and_record_with_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        workload, daemon = here.channel(domain), here.daemon(domain)
        await here.prepare(daemon)
        await here.prepare(workload)
        assert await here.unprepare(workload) == ()
        assert here.label is None
        assert (tmp_path / "domains" / domain).is_dir(), "the daemon still runs there"
        assert await here.unprepare(daemon) == ()
        assert not (tmp_path / "domains" / domain).exists()
        assert (here.specs, await here.record.all()) == ([], [])


async def test_a_claim_that_never_became_ready_is_given_back_as_well(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ref = here.channel(here.domain())
        assert isinstance(await here.prepare(ref), DomainNotReady)
        assert await here.unprepare(ref) == ()
        assert (here.label, await here.record.all()) == (None, [])


async def test_what_is_given_back_needs_neither_the_claim_nor_the_domain(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        here.server.remove(RESOURCE_CLAIMS, ref.name, ref.namespace)
        here.server.remove(DOMAINS, "training", TEAM)
        assert await here.unprepare(ref) == ()
        assert await here.unprepare(ref) == (), "once more does no harm"
        assert here.label is None


async def test_a_node_that_is_gone_keeps_no_claim(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        here.server.remove(NODES, NODE, "")
        assert await here.unprepare(ref) == ()


async def test_a_label_that_cannot_be_taken_off_keeps_the_claim_for_the_next_try(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        here.server.forbid("patch", "nodes")
        assert isinstance(await here.unprepare(ref), KubeError)
        assert [entry.uid for entry in await here.record.all()] == [ref.uid]
        here.server.permit()
        assert await here.unprepare(ref) == ()
        assert here.label is None


async def test_what_another_agent_of_the_node_has_given_back_meanwhile_is_not_held_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update the kubelet may ask the one to prepare and the other to unprepare."""
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        select = here.server.store.select

        def and_meanwhile(place: Place, matches: Matches | None = None) -> list[Object]:
            if place.plural == CLIQUES.plural:
                (tmp_path / "compute-domains.json").unlink()
            return select(place, matches)

        monkeypatch.setattr(here.server.store, "select", and_meanwhile)
        answer = await here.prepare(here.channel(domain))
        assert isinstance(answer, Overtaken), answer
        assert (here.specs, await here.record.all()) == ([], [])


# Over restarts


async def test_a_running_workload_is_answered_the_same_while_its_daemon_starts_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        first = await here.prepare(ref)
        here.ready(domain, "NotReady")
        for file in (tmp_path / "cdi").iterdir():
            file.unlink()  # as a boot does
        assert await here.prepare(ref) == first
        assert len(here.specs) == 1


async def test_the_next_agent_knows_what_the_last_one_gave_out(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        body = here.server.objects(RESOURCE_CLAIMS)
    async with world(tmp_path / ".") as later:
        (entry,) = await later.record.all()
        assert (entry.uid, entry.domain, entry.prepared) == (ref.uid, domain, True)
        assert body
        later.server.put(NODES, {"metadata": {"name": NODE, "labels": {LABEL: domain}}})
        await later.claims.sweep()
        assert (await later.record.all(), later.label, later.specs) == ([], None, [])


async def test_a_claim_that_is_still_there_is_not_swept(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        await here.claims.sweep()
        assert here.label == domain
        here.server.remove(RESOURCE_CLAIMS, ref.name, ref.namespace)
        here.claim(config("ComputeDomainChannelConfig", domain), name=ref.name)
        await here.claims.sweep()
        assert here.label is None, "another claim of its name is not it"


@pytest.mark.parametrize("pool", [None, "tray-2"])
async def test_a_claim_that_was_freed_while_the_kubelet_was_away_is_swept(tmp_path: Path, pool: str | None) -> None:
    """It is there for its next pod, which may be on another node; this one was no other domain's for ever."""
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        (claim,) = here.server.objects(RESOURCE_CLAIMS)
        if pool is None:
            del claim["status"]["allocation"]
        else:
            claim["status"]["allocation"]["devices"]["results"][0]["pool"] = pool
        here.server.put(RESOURCE_CLAIMS, claim)
        await here.claims.sweep()
        assert (here.label, here.specs, await here.record.all()) == (None, [], [])


async def test_a_404_that_speaks_of_no_object_gives_nothing_back(tmp_path: Path) -> None:
    """So answer proxies, and servers that do not serve the kind at the moment."""
    async with world(tmp_path) as here:
        domain = here.ready_domain()
        ref = here.channel(domain)
        await here.prepare(ref)
        here.server.fail(1, path=ref.name, code=404)
        with pytest.raises(NotFound):
            await here.claims.sweep()
        here.server.fail(1, path=NODE, code=404)
        assert isinstance(await here.unprepare(ref), NotFound), "the node may be there, and have the label"
        assert (here.label, [entry.uid for entry in await here.record.all()]) == (domain, [ref.uid])


async def test_a_claim_that_is_gone_or_replaced_is_not_prepared(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ref = here.channel(here.domain(), namespace=TEAM)
        here.server.remove(RESOURCE_CLAIMS, ref.name, ref.namespace)
        assert isinstance(await here.prepare(ref), ClaimUnreadable)
        here.claim(config("ComputeDomainChannelConfig", here.domain("other")), name=ref.name)
        assert isinstance(await here.prepare(ref), ClaimUnreadable)
        assert SYSTEM not in {one["metadata"]["namespace"] for one in here.server.objects(RESOURCE_CLAIMS)}
