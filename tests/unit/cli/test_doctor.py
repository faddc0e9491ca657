"""``node-agent doctor`` in the hands of its users: what it prints, and how it ends."""

from pathlib import Path

import msgspec
import pytest

from node_agent.cli.doctor import show
from node_agent.doctor.finding import Examination, Finding, Result, failed, ok, warning
from tests.unit.cli.conftest import Run


def test_a_node_without_a_kubelet_is_told_what_to_do_and_the_command_fails(run: Run, folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text(
        f"version: v1\nagent: {{paths: {{kubeletDir: {folder}, stateDir: {folder}, cdiDir: {folder}}}}}\n"
    )
    outcome = run("doctor", "--simulate", "l4-2", "--config", config, "--socket", folder / "none.sock")
    assert outcome.code == 1
    assert any(line.startswith("ok       driver.module") for line in outcome.lines)
    failures = [number for number, line in enumerate(outcome.lines) if line.startswith("failed")]
    assert all(outcome.lines[number + 1].strip().startswith("fix: ") for number in failures)
    assert "2 failed" in outcome.lines[-1]


def test_as_json_it_is_one_document_with_every_check(run: Run, folder: Path) -> None:
    outcome = run("doctor", "--simulate", "l4-2", "-o", "json", "--socket", folder / "none.sock")
    found = msgspec.json.decode(outcome.out, type=Examination)
    assert outcome.code == found.failed
    assert len({one.check for one in found.findings}) >= 20
    assert found.findings[0].check == "driver.module"


def test_a_driver_that_cannot_be_asked_is_examined_all_the_same(run: Run, broken_driver: Path, folder: Path) -> None:
    outcome = run("doctor", "--simulate", broken_driver, "--socket", folder / "none.sock")
    assert outcome.code == 1
    assert any("driver.library" in line and "nvmlInit" in line for line in outcome.lines)


def test_what_fails_is_printed_last_and_brackets_stay_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    findings = (
        failed("a.b", "no [red] light", "/x", fix="mend it"),
        ok("c.d", "well"),
        warning("e.f", "hm", fix="see"),
    )
    show(Examination(node="", findings=findings))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["ok", "warning", "failed", "this"]
    assert "no [red] light  /x" in lines[-3]
    assert lines[-1] == "this node: 1 ok, 1 warning, 1 failed"


def test_warnings_alone_are_no_failure() -> None:
    finding = Finding(check="a.b", result=Result.WARNING, what="hm", fix="see")
    assert not Examination(node="n", findings=(finding,)).failed
