"""What the API client does with an API server: one suite for the fake one and for a real one.

``tests/node/test_kube_client.py`` runs it over the real one, so that what other tests learn from the fake is true.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from node_agent.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeAccessError,
    KubeApiError,
    NotFound,
)
from node_agent.kit.tasks import running
from node_agent.kube import client as client_module
from node_agent.kube.access import Access
from node_agent.kube.client import EventType, KubeClient, Patch
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from tests.contract.kube_objects import (
    CONFIG_MAPS,
    DRIVER,
    allocated,
    config_map,
    reported,
    resource_claim,
    resource_slice,
    without_own,
)
from tests.fakes import certificates
from tests.fakes.api_server import ApiServer


class KubeClientContract:
    """The suite. A module that runs it makes a subclass whose name pytest collects, and the fixtures ``access``, of
    somebody who may do everything, ``powerless``, of somebody who may not list nodes, ``forgotten``, a version from
    which events can be watched no more, and ``passing_time``, which makes bookmarks come if they do not by themselves.
    """

    @pytest.fixture
    async def client(self, access: Access) -> AsyncIterator[KubeClient]:
        async with KubeClient(access, agent="contract") as client:
            yield client

    @pytest.fixture(autouse=True)
    async def leave_nothing(self, access: Access) -> AsyncIterator[None]:
        yield
        async with KubeClient(access) as client:
            for resource in (CONFIG_MAPS, RESOURCE_SLICES, RESOURCE_CLAIMS):
                for item in (await client.list(resource)).items:
                    if item["metadata"]["name"].startswith("test-"):
                        await client.delete(resource, item["metadata"]["name"], item["metadata"].get("namespace", ""))

    async def test_a_created_object_is_returned_as_stored_and_can_be_read(self, client: KubeClient) -> None:
        wanted = resource_slice("", "gpu-0", "gpu-1")
        made = await client.create(RESOURCE_SLICES, wanted)
        assert without_own(made) == wanted
        assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
        assert made["metadata"]["generation"] == 1
        assert await client.get(RESOURCE_SLICES, made["metadata"]["name"]) == made

    async def test_an_object_in_a_namespace_is_found_there_only(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1"))
        name = made["metadata"]["name"]
        assert (await client.get(CONFIG_MAPS, name, "default"))["data"] == {"a": "1"}
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, name, "kube-system")
        assert name in {item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS)).items}
        assert name not in {item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS, "kube-system")).items}

    async def test_an_object_that_is_not_there_is_not_found(self, client: KubeClient) -> None:
        with pytest.raises(NotFound, match=r'resourceslices\.resource\.k8s\.io "test-none" not found') as missing:
            await client.get(RESOURCE_SLICES, "test-none")
        assert (missing.value.code, missing.value.reason, missing.value.verb) == (404, "NotFound", "get")
        assert missing.value.path == "/apis/resource.k8s.io/v1/resourceslices/test-none"

    async def test_a_kind_that_the_server_does_not_serve_is_not_found(self, client: KubeClient) -> None:
        with pytest.raises(NotFound):
            await client.list(RESOURCE_SLICES.at("v1alpha1"))

    async def test_the_groups_that_are_served_have_that_of_claims_and_none_that_is_not_there(
        self, client: KubeClient
    ) -> None:
        found = await client.groups()
        assert RESOURCE_SLICES.group in found
        assert "test.example" not in found

    async def test_the_server_makes_up_a_name(self, client: KubeClient) -> None:
        wanted = resource_slice()
        wanted["metadata"] = {"generateName": "test-"}
        first, second = [(await client.create(RESOURCE_SLICES, wanted))["metadata"]["name"] for _ in range(2)]
        assert first != second
        assert first.startswith("test-") and len(first) == len("test-") + 5

    async def test_a_second_object_of_a_name_already_exists(self, client: KubeClient) -> None:
        wanted = resource_slice()
        await client.create(RESOURCE_SLICES, wanted)
        with pytest.raises(AlreadyExists) as refused:
            await client.create(RESOURCE_SLICES, wanted)
        assert (refused.value.code, refused.value.reason) == (409, "AlreadyExists")

    async def test_a_list_has_each_object_as_it_is_when_read_alone(self, client: KubeClient) -> None:
        made = [await client.create(RESOURCE_SLICES, resource_slice("", "gpu-0")) for _ in range(3)]
        listed = await client.list(RESOURCE_SLICES, fields=f"spec.driver={DRIVER}")
        assert sorted(listed.items, key=lambda it: it["metadata"]["name"]) == sorted(
            made, key=lambda it: it["metadata"]["name"]
        )
        assert int(listed.resource_version) >= max(int(item["metadata"]["resourceVersion"]) for item in made)

    async def test_fields_and_labels_select(self, client: KubeClient) -> None:
        ours, theirs, away = resource_slice(), resource_slice(driver="other.test"), resource_slice(node="n1")
        ours["metadata"]["labels"] = {"color": "red"}
        for item in (ours, theirs, away):
            await client.create(RESOURCE_SLICES, item)

        async def selected(**selectors: str) -> set[str]:
            return {item["metadata"]["name"] for item in (await client.list(RESOURCE_SLICES, **selectors)).items}

        name, other, far = (item["metadata"]["name"] for item in (ours, theirs, away))
        assert await selected(fields=f"spec.driver={DRIVER},spec.nodeName=n0") == {name}
        assert await selected(fields="spec.nodeName=n0") == {name, other}
        assert await selected(fields=f"spec.nodeName!=n0,spec.driver={DRIVER}") == {far}
        assert await selected(fields=f"metadata.name={other}") == {other}
        assert await selected(labels="color=red") == await selected(labels="color") == {name}
        assert await selected(labels="!color", fields=f"spec.driver={DRIVER}") == {far}
        assert await selected(labels="color!=red", fields="spec.nodeName=n0") == {other}

    async def test_a_field_that_cannot_select_is_refused(self, client: KubeClient) -> None:
        with pytest.raises(KubeApiError, match=r"field label not supported.*spec\.color") as refused:
            await client.list(RESOURCE_SLICES, fields="spec.color=red")
        assert refused.value.code == 400

    async def test_a_long_list_comes_in_pages(self, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "PAGE", 2)
        made = {(await client.create(RESOURCE_SLICES, resource_slice()))["metadata"]["name"] for _ in range(5)}
        listed = [item["metadata"]["name"] for item in (await client.list(RESOURCE_SLICES)).items]
        assert len(listed) == len(set(listed))
        assert made <= set(listed)

    async def test_an_update_replaces_and_a_new_spec_is_a_new_generation(self, client: KubeClient) -> None:
        made = await client.create(RESOURCE_SLICES, resource_slice("", "gpu-0"))
        made["spec"]["devices"] = [{"name": "gpu-1"}]
        changed = await client.update(RESOURCE_SLICES, made)
        assert changed["spec"]["devices"] == [{"name": "gpu-1"}]
        assert changed["metadata"]["generation"] == 2
        assert changed["metadata"]["uid"] == made["metadata"]["uid"]
        assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]

    async def test_an_update_without_a_change_leaves_the_object_as_it_is(self, client: KubeClient) -> None:
        made = await client.create(RESOURCE_SLICES, resource_slice("", "gpu-0"))
        assert await client.update(RESOURCE_SLICES, made) == made

    async def test_a_stale_update_is_a_conflict(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1"))
        await client.update(CONFIG_MAPS, made | {"data": {"a": "2"}})
        with pytest.raises(Conflict, match="the object has been modified") as refused:
            await client.update(CONFIG_MAPS, made | {"data": {"a": "3"}})
        assert not isinstance(refused.value, AlreadyExists)
        assert refused.value.verb == "update"

    async def test_an_update_that_names_no_version_overwrites(self, client: KubeClient) -> None:
        wanted = config_map(a="1")
        await client.create(CONFIG_MAPS, wanted)
        assert (await client.update(CONFIG_MAPS, wanted | {"data": {"b": "2"}}))["data"] == {"b": "2"}

    async def test_an_update_of_what_is_not_there_is_not_found(self, client: KubeClient) -> None:
        with pytest.raises(NotFound):
            await client.update(RESOURCE_SLICES, resource_slice())

    async def test_a_change_that_breaks_a_rule_is_invalid_and_names_the_field(self, client: KubeClient) -> None:
        made = await client.create(RESOURCE_SLICES, resource_slice())
        made["spec"]["driver"] = "another.test"
        with pytest.raises(Invalid, match="field is immutable") as refused:
            await client.update(RESOURCE_SLICES, made)
        assert refused.value.causes[0][0] == "spec.driver"
        assert "field is immutable" in refused.value.causes[0][1]

    async def test_a_name_that_is_none_is_invalid(self, client: KubeClient) -> None:
        wanted = resource_slice()
        wanted["metadata"]["name"] = "Not A Name"
        with pytest.raises(Invalid) as refused:
            await client.create(RESOURCE_SLICES, wanted)
        assert [field for field, _ in refused.value.causes] == ["metadata.name"]

    async def test_a_merge_patch_changes_what_it_names_and_null_removes(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1", b="2"))
        name = made["metadata"]["name"]
        changed = await client.patch(CONFIG_MAPS, name, {"data": {"b": None, "c": "3"}}, "default")
        assert changed["data"] == {"a": "1", "c": "3"}

    async def test_a_json_patch_is_carried_out_step_by_step(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1", b="2"))
        steps = [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "replace", "path": "/data/a", "value": "9"},
            {"op": "remove", "path": "/data/b"},
            {"op": "add", "path": "/data/c", "value": "4"},
        ]
        name = made["metadata"]["name"]
        changed = await client.patch(CONFIG_MAPS, name, steps, "default", how=Patch.JSON)
        assert changed["data"] == {"a": "9", "c": "4"}
        with pytest.raises(Invalid):
            await client.patch(CONFIG_MAPS, name, steps, "default", how=Patch.JSON)

    async def test_a_patch_that_names_an_old_version_is_a_conflict(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1"))
        name, version = made["metadata"]["name"], made["metadata"]["resourceVersion"]
        await client.patch(CONFIG_MAPS, name, {"data": {"a": "2"}}, "default")
        with pytest.raises(Conflict):
            change = {"metadata": {"resourceVersion": version}, "data": {"a": "3"}}
            await client.patch(CONFIG_MAPS, name, change, "default")

    async def test_what_is_applied_is_made_and_later_taken_away_again_by_its_owner_alone(
        self, client: KubeClient
    ) -> None:
        wanted = config_map(a="1", b="2")
        name = wanted["metadata"]["name"]
        await client.patch(CONFIG_MAPS, name, wanted, "default", how=Patch.APPLY)
        await client.patch(CONFIG_MAPS, name, {"data": {"c": "3"}}, "default")
        applied = await client.patch(CONFIG_MAPS, name, wanted | {"data": {"b": "9"}}, "default", how=Patch.APPLY)
        assert applied["data"] == {"b": "9", "c": "3"}

    async def test_drivers_report_on_their_own_devices_of_one_claim(self, access: Access, client: KubeClient) -> None:
        claim = await client.create(RESOURCE_CLAIMS, resource_claim())
        name = claim["metadata"]["name"]
        await client.update(RESOURCE_CLAIMS, claim | {"status": allocated("gpu", "nic")}, subresource="status")

        async def report(agent: str, *devices: Object) -> list[Object]:
            head = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": RESOURCE_CLAIMS.kind}
            change = head | {"metadata": {"name": name}, "status": {"devices": list(devices)}}
            async with KubeClient(access, agent=agent) as driver:
                changed = await driver.patch(
                    RESOURCE_CLAIMS, name, change, "default", how=Patch.APPLY, subresource="status"
                )
            return sorted(changed["status"].get("devices", ()), key=lambda device: str(device["device"]))

        assert await report("gpu", reported("gpu", x=1)) == [reported("gpu", x=1)]
        assert await report("nic", reported("nic", y=1)) == [reported("gpu", x=1), reported("nic", y=1)]
        assert await report("gpu", reported("gpu", x=2)) == [reported("gpu", x=2), reported("nic", y=1)]
        assert await report("gpu") == [reported("nic", y=1)]

    async def test_the_status_is_written_by_its_subresource_alone(self, client: KubeClient) -> None:
        claim = await client.create(RESOURCE_CLAIMS, resource_claim() | {"status": allocated("gpu")})
        assert "allocation" not in claim.get("status", {})
        claim = await client.update(RESOURCE_CLAIMS, claim | {"status": allocated("gpu")}, subresource="status")
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu"
        claim["metadata"]["labels"] = {"color": "red"}
        labelled = await client.update(RESOURCE_CLAIMS, claim | {"status": {}})
        assert labelled["metadata"]["labels"] == {"color": "red"}
        assert labelled["status"] == claim["status"]

    async def test_the_status_subresource_changes_no_spec(self, client: KubeClient) -> None:
        claim = await client.create(RESOURCE_CLAIMS, resource_claim())
        change = {"spec": {"devices": {"requests": []}}, "status": allocated("gpu")}
        name = claim["metadata"]["name"]
        changed = await client.patch(RESOURCE_CLAIMS, name, change, "default", subresource="status")
        assert changed["spec"] == claim["spec"]
        assert "allocation" in changed["status"]

    async def test_what_has_no_status_has_no_such_subresource(self, client: KubeClient) -> None:
        made = await client.create(RESOURCE_SLICES, resource_slice())
        with pytest.raises(NotFound):
            await client.update(RESOURCE_SLICES, made, subresource="status")

    async def test_a_dry_run_answers_as_if_and_stores_nothing(self, client: KubeClient) -> None:
        wanted = resource_slice("", "gpu-0")
        name = wanted["metadata"]["name"]
        assert (await client.create(RESOURCE_SLICES, wanted, dry_run=True))["spec"] == wanted["spec"]
        with pytest.raises(NotFound):
            await client.get(RESOURCE_SLICES, name)
        made = await client.create(RESOURCE_SLICES, wanted)
        other = made | {"spec": made["spec"] | {"devices": []}}
        assert (await client.update(RESOURCE_SLICES, other, dry_run=True))["spec"].get("devices", []) == []
        change = {"metadata": {"labels": {"color": "red"}}}
        patched = await client.patch(RESOURCE_SLICES, name, change, dry_run=True)
        assert patched["metadata"]["labels"] == {"color": "red"}
        assert await client.get(RESOURCE_SLICES, name) == made
        with pytest.raises(Invalid):
            await client.update(RESOURCE_SLICES, made | {"spec": made["spec"] | {"driver": "b.test"}}, dry_run=True)

    async def test_a_deletion_says_whether_there_was_anything(self, client: KubeClient) -> None:
        name = (await client.create(RESOURCE_SLICES, resource_slice()))["metadata"]["name"]
        assert await client.delete(RESOURCE_SLICES, name)
        assert not await client.delete(RESOURCE_SLICES, name)
        with pytest.raises(NotFound):
            await client.get(RESOURCE_SLICES, name)

    async def test_only_the_object_that_was_meant_is_deleted(self, client: KubeClient) -> None:
        made = await client.create(CONFIG_MAPS, config_map(a="1"))
        name, uid, version = (made["metadata"][key] for key in ("name", "uid", "resourceVersion"))
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, name, "default", uid=str(uuid.uuid4()))
        await client.patch(CONFIG_MAPS, name, {"data": {"a": "2"}}, "default")
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, name, "default", uid=uid, resource_version=version)
        assert await client.delete(CONFIG_MAPS, name, "default", uid=uid)

    async def test_a_finalizer_delays_the_deletion(self, client: KubeClient) -> None:
        wanted = config_map()
        wanted["metadata"]["finalizers"] = ["test.test/wait"]
        name = (await client.create(CONFIG_MAPS, wanted))["metadata"]["name"]
        assert await client.delete(CONFIG_MAPS, name, "default")
        assert (await client.get(CONFIG_MAPS, name, "default"))["metadata"]["deletionTimestamp"]
        await client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, "default")
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, name, "default")

    async def test_a_watch_tells_what_came_after_the_list_in_order(self, client: KubeClient) -> None:
        before = await client.create(RESOURCE_SLICES, resource_slice("", "gpu-0"))
        listing = await client.list(RESOURCE_SLICES)
        made = await client.create(RESOURCE_SLICES, resource_slice("", "gpu-1"))
        async with asyncio.timeout(30), client.watch(RESOURCE_SLICES, listing.resource_version) as events:
            assert (event := await anext(events)).type is EventType.ADDED
            assert event.object == made
            made["spec"]["devices"] = []
            made = await client.update(RESOURCE_SLICES, made)
            assert (event := await anext(events)).type is EventType.MODIFIED
            assert event.object == made
            await client.delete(RESOURCE_SLICES, before["metadata"]["name"])
            assert (event := await anext(events)).type is EventType.DELETED
        assert event.object["metadata"]["uid"] == before["metadata"]["uid"]
        assert int(event.object["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])

    async def test_a_watch_goes_on_from_any_events_version(self, client: KubeClient) -> None:
        version = (await client.list(CONFIG_MAPS)).resource_version
        names = [(await client.create(CONFIG_MAPS, config_map()))["metadata"]["name"] for _ in range(3)]
        seen = []
        for _ in names:
            async with asyncio.timeout(30), client.watch(CONFIG_MAPS, version, namespace="default") as events:
                event = await anext(events)
                seen.append(event.object["metadata"]["name"])
                version = event.object["metadata"]["resourceVersion"]
        assert seen == names

    async def test_a_watch_sees_what_its_selectors_name_and_what_leaves_them(self, client: KubeClient) -> None:
        version = (await client.list(CONFIG_MAPS)).resource_version
        made = await client.create(CONFIG_MAPS, config_map())
        name = made["metadata"]["name"]
        for color in ("red", "red!", "blue"):
            change = {"metadata": {"labels": {"color": color.strip("!")}, "annotations": {"said": color}}}
            await client.patch(CONFIG_MAPS, name, change, "default")
        async with asyncio.timeout(30), client.watch(CONFIG_MAPS, version, labels="color=red") as events:
            kinds = [(await anext(events)).type for _ in range(3)]
        assert kinds == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]

    async def test_a_watch_is_told_where_it_is_and_ends_in_order(
        self, client: KubeClient, passing_time: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "WATCH_SECONDS", (5, 5))
        version = (await client.list(NODES)).resource_version
        async with asyncio.timeout(30), client.watch(NODES, version) as events:
            seen = [event async for event in events]
        mark = next(event.object for event in seen if event.type is EventType.BOOKMARK)
        assert mark["kind"] == "Node"
        assert int(mark["metadata"]["resourceVersion"]) >= int(version)

    async def test_a_watch_from_a_forgotten_version_has_expired(self, client: KubeClient, forgotten: str) -> None:
        with pytest.raises(Expired) as refused:
            async with asyncio.timeout(30), client.watch(EVENTS, forgotten) as events:
                await anext(events)
        assert refused.value.code == 410

    async def test_a_mirror_follows_what_the_server_has(self, client: KubeClient) -> None:
        mirror = Mirror(client, RESOURCE_SLICES, fields=f"spec.driver={DRIVER}")
        first, other = resource_slice("", "gpu-0"), resource_slice(driver="other.test")
        made = await client.create(RESOURCE_SLICES, first)
        await client.create(RESOURCE_SLICES, other)
        async with asyncio.timeout(30), running(mirror.run()):
            async for synced in mirror.synced.watch():
                if synced:
                    break
            second = (await client.create(RESOURCE_SLICES, resource_slice()))["metadata"]["name"]
            await client.delete(RESOURCE_SLICES, made["metadata"]["name"])
            async for objects in mirror.objects.watch():
                if set(objects) == {second}:
                    break
        assert mirror.restarts == 0
        assert mirror.staleness < 10

    async def test_who_has_no_right_is_told_which(self, powerless: Access) -> None:
        async with KubeClient(powerless) as client:
            with pytest.raises(Forbidden, match='cannot list resource "nodes" in API group ""') as refused:
                await client.list(NODES)
        assert refused.value.code == 403
        assert "grant it in a role that is bound to that user" in str(refused.value)

    async def test_who_is_nobody_is_told_that_the_token_is_not_valid(self, access: Access) -> None:
        async with KubeClient(replace(access, token="forged")) as client:
            with pytest.raises(KubeApiError, match="the token or the client certificate is not valid there") as refused:
                await client.list(NODES)
        assert refused.value.code == 401

    async def test_a_server_of_another_authority_is_not_trusted(self, access: Access) -> None:
        async with KubeClient(replace(access, authority=certificates.STRANGER)) as client:
            with pytest.raises(
                KubeAccessError, match=r"cannot be trusted: .*is the certificate authority of .* that server's"
            ):
                await client.list(NODES)

    async def test_a_server_of_another_name_is_not_trusted(self, access: Access) -> None:
        async with KubeClient(replace(access, server_name="elsewhere.test")) as client:
            with pytest.raises(KubeAccessError, match="set tls-server-name"):
                await client.list(NODES)

    async def test_a_server_is_known_by_another_name_of_its_certificate(self, access: Access) -> None:
        async with KubeClient(replace(access, server_name="kubernetes.default.svc")) as client:
            assert (await client.list(NODES)).resource_version

    async def test_anybody_is_trusted_where_that_is_asked_for(self, access: Access) -> None:
        async with KubeClient(replace(access, authority=None, verify=False, server_name="elsewhere.test")) as client:
            assert (await client.list(NODES)).resource_version

    async def test_the_newest_version_that_both_know_is_found(self, client: KubeClient) -> None:
        assert await client.newest_version() == "v1"
        with pytest.raises(NotFound, match=r"serves only v1 of resource\.k8s\.io, and v0 are known here"):
            await client.newest_version(known=("v0",))
        with pytest.raises(NotFound, match=r"serves none of no\.such\.group"):
            await client.newest_version("no.such.group", ("v1",))


class TestOverTheFake(KubeClientContract):
    @pytest.fixture
    async def server(self) -> AsyncIterator[ApiServer]:
        authority = certificates.AUTHORITY.read_bytes()
        async with ApiServer(token="right", tls=certificates.serving(), authority=authority) as server:
            yield server

    @pytest.fixture
    def access(self, server: ApiServer) -> Access:
        return server.access

    @pytest.fixture
    def powerless(self, server: ApiServer) -> Access:
        server.forbid("list", "nodes")
        return server.access

    @pytest.fixture
    def forgotten(self, server: ApiServer) -> str:
        server.compact()
        return "1"

    @pytest.fixture
    async def passing_time(self, server: ApiServer) -> AsyncIterator[None]:
        async def pass_time() -> None:
            await server.until(lambda: server.watches)
            server.bookmark()
            server.end_watches()

        async with running(pass_time()):
            yield
