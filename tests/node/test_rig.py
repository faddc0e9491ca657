"""The rig keeps its word: tests of the agent on a real node rest on what is shown here."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.rig import packages, traces
from tests.node.rig.api import Api, ApiError
from tests.node.rig.machine import Machine
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import NotYet, RigError, TimedOut, wait_until

pytestmark = pytest.mark.node

CDI_SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "rig.test/gpu",
    "devices": [
        {
            "name": "one",
            "containerEdits": {"env": ["SEEN=one"], "deviceNodes": [{"path": "/dev/nvidia7"}]},
        }
    ],
}


def test_the_node_is_ready_within_its_time(node: RealNode) -> None:
    conditions = {it["type"]: it["status"] for it in node.read()["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node.allocatable("pods") == 110
    assert node.allocatable("rig.test/none") == 0
    assert node.started_in < 120


def test_a_merge_that_would_wipe_the_nodes_conditions_is_refused(node: RealNode) -> None:
    change = {"status": {"conditions": [{"type": "GPUHealthy", "status": "True"}]}}
    with pytest.raises(ValueError, match="would wipe those of others"):
        node.api.patch("Node", node.name, change, subresource="status")


def test_a_pod_runs_and_its_log_is_read(node: RealNode) -> None:
    pod = node.pods.run(busybox_pod("talks", "echo hello; printf world"), "Succeeded")
    assert node.pods.log(pod) == "hello\nworld"
    assert any(event.startswith("Started") for event in node.pods.events("talks"))


def test_a_command_runs_in_a_pods_container(node: RealNode) -> None:
    pod = node.pods.run(busybox_pod("waits"))
    assert node.pods.execute(pod, ["hostname"]) == "rig-node\n"
    assert "PATH=/bin" in node.pods.runtime_spec(pod)["process"]["env"]


def test_a_pod_reaches_the_api_server_and_has_a_token_that_names_its_node(node: RealNode) -> None:
    script = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && cat /var/run/secrets/*/*/token"
    pod = node.pods.run(busybox_pod("asks", script, hostNetwork=False), "Succeeded")
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": node.pods.log(pod)}}
    user = node.api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]["user"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["rig-node"]


def test_containerd_gives_a_container_a_device_of_the_cdi_folder(node: RealNode) -> None:
    node.machine.make_device("/dev/nvidia7", 195, 7)
    (node.cdi_folder / "rig.json").write_text(json.dumps(CDI_SPEC))
    run = ["ctr", "--namespace=k8s.io", "run", "--rm", "--device=rig.test/gpu=one", "rig.local/busybox:1", "cdi"]
    seen = node.machine.run([*run, "sh", "-c", "echo $SEEN; stat -c '%t %T' /dev/nvidia7"])
    assert seen == "one\nc3 7\n"
    assert not Path("/dev/nvidia7").exists()


def test_the_scheduler_says_why_a_pod_is_pending(node: RealNode) -> None:
    node.api.create(busybox_pod("wants", limits={"rig.test/none": 1}))
    assert "Insufficient rig.test/none" in node.pods.why_pending("wants")


def test_a_pod_that_ends_otherwise_than_awaited_is_an_error_that_says_how(node: RealNode) -> None:
    node.api.create(busybox_pod("fails", "exit 3"))
    with pytest.raises(RigError, match="shall be Succeeded, but ended as Failed"):
        node.pods.wait("fails", "Succeeded")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_container_survives_the_kubelets_restart(node: RealNode, number: signal.Signals) -> None:
    pod = node.pods.run(busybox_pod("stays"))
    before = node.pods.container_id(pod)
    node.stop_kubelet(number)
    assert not node.machine.programs["kubelet"].running
    assert node.pods.execute(pod, ["true"]) == ""
    node.start_kubelet()
    assert node.pods.container_id(pod) == before
    node.pods.run(busybox_pod("comes", "true"), "Succeeded")


def test_a_test_in_its_own_process_and_one_on_the_node_see_the_same_kubelet(node: RealNode) -> None:
    assert (node.device_plugins / "kubelet.sock").is_socket()
    assert node.pod_resources_socket.is_socket()
    assert node.plugins_registry.is_dir()
    there = node.machine.run(["ls", "/var/lib/kubelet/device-plugins"]).split()
    assert sorted(there) == sorted(path.name for path in node.device_plugins.iterdir())


def test_a_program_on_the_node_is_ended_and_its_exit_status_seen(node: RealNode) -> None:
    script = "trap 'echo ended; exit 5' TERM; echo began in $PWD as $NAME; while :; do sleep 0.05; done"
    program = node.machine.start("agent", ["sh", "-c", script], environment={"NAME": "it"}, folder="/tmp")
    wait_until("it has begun", program.text)
    assert Path(f"/proc/{program.pid}/comm").read_text() == "sh\n"
    with pytest.raises(RigError, match="a program named agent runs already"):
        node.machine.start("agent", ["true"])
    assert program.stop() == 5
    assert program.text() == "began in /tmp as it\nended\n"


def test_the_projects_own_code_runs_on_the_node_with_nothing_of_the_tests_environment(node: RealNode) -> None:
    script = "import os, node_agent; print('PYTEST_CURRENT_TEST' in os.environ, os.path.exists('/run/containerd/s'))"
    assert node.machine.run([sys.executable, "-c", script]) == "False True\n"
    assert "PYTEST_CURRENT_TEST" in os.environ


def test_a_port_on_the_node_is_reached_at_its_address(node: RealNode) -> None:
    node.machine.start("speaker", ["busybox", "nc", "-l", "-p", "9400", "-e", "echo", "metrics"])

    def said() -> bytes:
        try:
            with socket.create_connection((node.machine.address, 9400), timeout=5) as connection:
                return connection.recv(100)
        except ConnectionRefusedError as error:
            raise NotYet(str(error)) from error

    assert wait_until("the speaker listens", said) == b"metrics\n"


def test_what_a_test_has_made_is_gone_after_it(node: RealNode) -> None:
    node.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: made}}")
    node.pods.run(busybox_pod("made"))
    node.machine.make_device("/dev/nvidia-made", 195, 0)
    agent = node.machine.start("agent", ["sleep", "1000"])
    node.stop_kubelet()
    node.clean()
    assert node.api.find("ConfigMap", "made") is None
    assert node.api.list("Pod") == []
    assert not node.machine.path("/dev/nvidia-made").exists()
    assert not agent.running
    assert node.machine.programs["kubelet"].running


def test_a_service_account_has_the_rights_that_it_was_given_and_no_others(node: RealNode) -> None:
    node.create(
        """
        {apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata: {name: reader}
        rules: [{apiGroups: [""], resources: [nodes], verbs: [get]}]
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRoleBinding
        metadata: {name: reader}
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
        subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
        """
    )
    reader = Api(node.service_account_kubeconfig("reader"))
    assert reader.get("Node", node.name)["metadata"]["name"] == node.name
    with pytest.raises(ApiError, match="cannot list resource") as refused:
        reader.list("Node")
    assert refused.value.code == 403


def test_a_program_that_fails_shows_the_end_of_its_log(node: RealNode) -> None:
    program = node.machine.start("fails", ["sh", "-c", "echo out of luck; exit 4"])
    assert program.wait() == 4
    with pytest.raises(RigError, match=r"status 4:\n(.|\n)*out of luck"):
        program.require_running()


def test_a_component_that_refuses_to_start_is_an_error_with_the_end_of_its_log() -> None:
    node = RealNode(kubelet_settings={"maxPods": -1})
    with pytest.raises(RigError, match=r"kubelet has ended with status 1:\n(.|\n)*maxPods"), node:
        pass
    assert traces.of(node.machine.name) == []


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RigError, match="no `go` on PATH"):
        packages.ensure()
    (tmp_path / "go").touch(mode=0o755)
    with pytest.raises(RigError, match="no apt-get: install what Debian calls runc busybox-static"):
        packages.ensure()


def test_a_machine_leaves_nothing_when_it_is_closed() -> None:
    with Machine("closed") as machine:
        daemon = machine.start("daemon", ["sh", "-c", "sleep 1000 & setsid sleep 1000 & mount -t tmpfs x /run; wait"])
        wait_until("its mount is there", lambda: "x /run" in Path(f"/proc/{daemon.pid}/mounts").read_text())
        assert len(traces.of(machine.name)) > 3
    assert traces.of(machine.name) == []


def swept(name: str) -> bool:
    """Sweep what a node has left. Who sweeps beside this process is not waited for."""
    traces.sweep()
    return not traces.of(name)


def test_a_node_whose_owner_is_killed_leaves_nothing_that_runs_and_nothing_after_the_next_sweep() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.node.rig", "up"], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        name = Path(owner.stdout.readline().split()[-1]).name
        assert (traces.PARENT / name).is_dir()
        owner.kill()
    wait_until("no process, mount or link is left", lambda: _only_files(name))
    wait_until("nothing is left", lambda: swept(name))


def _only_files(name: str) -> bool:
    return not [line for line in traces.of(name) if not line.startswith(("/tmp", "/sys/fs/cgroup"))]


def test_a_machine_in_use_survives_anothers_sweep() -> None:
    with Machine("used") as machine:
        traces.sweep()
        assert machine.run(["hostname"]) == "used\n"


def test_waiting_in_vain_says_for_what_and_what_was_seen_last() -> None:
    def never() -> None:
        raise NotYet("the third step is missing")

    with pytest.raises(TimedOut, match=r"waited 0 s in vain for this: all steps; the third step is missing"):
        wait_until("all steps", never, timeout=0)
    with pytest.raises(TimedOut, match="the last answer was ''"):
        wait_until("an answer", str, timeout=0)


def test_waiting_ends_with_the_first_true_answer() -> None:
    answers = iter([0, 0, 7])
    began = time.monotonic()
    assert wait_until("a number", lambda: next(answers), every=0.001) == 7
    assert time.monotonic() - began < 30
