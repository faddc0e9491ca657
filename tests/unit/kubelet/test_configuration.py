"""How the kubelet aligns, by its own file."""

from pathlib import Path

import pytest

from node_agent.errors import ConfigError
from node_agent.kubelet.configuration import Alignment, alignment_in

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def test_the_file_names_policy_scope_and_options(tmp_path: Path) -> None:
    text = "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"
    options = 'topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: 10}\n'
    assert alignment_in(written(tmp_path, HEAD + text + options)) == Alignment(
        policy="single-numa-node",
        scope="pod",
        options={"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "10"},
    )


def test_what_the_file_leaves_out_is_the_kubelets_default(tmp_path: Path) -> None:
    assert alignment_in(written(tmp_path, HEAD)) == Alignment(policy="none", scope="container")


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert alignment_in(tmp_path / "config.yaml") is None


@pytest.mark.parametrize("text", ["kind: Pod\n", "- 1\n", "", "a: [\n", "a: 1\na: 2\n"])
def test_another_file_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml: "):
        alignment_in(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read: Is a directory"):
        alignment_in(tmp_path / "config.yaml")
