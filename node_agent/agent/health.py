"""Puts the watch over the GPUs' health together, for ``build``: policy, board, and the services that feed it."""

from collections.abc import Mapping

from node_agent.agent.supervisor import Run
from node_agent.cdi.publisher import Published
from node_agent.config.settings import Settings
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.provider import Provider
from node_agent.health.board import HealthBoard
from node_agent.health.findings import Finding
from node_agent.health.looks import LastLooks
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.record import HealthFile, HealthRecorder
from node_agent.health.rules import Policy, Rule
from node_agent.health.verdicts import Verdicts
from node_agent.health.watcher import HealthWatcher
from node_agent.kit.boot import read_boot_id
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.model.health import Reason

log = Log(__name__)


async def remembering_board(settings: Settings, files: Lane) -> HealthBoard:
    """The board with what an earlier agent has left of open causes and counts."""
    return HealthBoard(verdicts_of(settings), await files.run("read the record of health", _file(settings).load))


def verdicts_of(settings: Settings) -> Verdicts:
    return Verdicts(policy=policy(settings), probe_seconds=settings.health.probe_interval, boot=read_boot_id())


def health_services(
    settings: Latest[Settings],
    board: HealthBoard,
    *,
    keeper: InventoryKeeper,
    provider: Provider,
    published: Latest[Published],
    files: Lane,
    looks: LastLooks,
) -> Mapping[str, Run]:
    """What feeds the board and keeps its record, by name."""
    watcher = HealthWatcher(
        inventory=keeper.inventory,
        events=provider.events,
        readings=provider.readings,
        board=board,
        on_change=keeper.rescan,
        looks=looks,
    )
    recorder = HealthRecorder(file=_file(settings.value), record=board.record, lane=files)
    return {
        "health": watcher.run,
        "health record": recorder.run,
        "health policy": lambda: follow_policy(settings, board),
        "health of device nodes": lambda: report_device_nodes(published, board),
    }


def _file(settings: Settings) -> HealthFile:
    return HealthFile(settings.paths.state_dir / "health.json")


async def follow_policy(settings: Latest[Settings], board: HealthBoard) -> None:
    """Have the board go by the rules that are in force, until cancelled."""
    async for found in settings.watch():
        if (verdicts := verdicts_of(found)) != board.verdicts:
            board.judge_by(verdicts)
            log.info("health is judged by other rules", rules=len(verdicts.policy.rules))


async def report_device_nodes(published: Latest[Published], board: HealthBoard) -> None:
    """Tell the board of GPUs that no container can use for want of a device node, until cancelled."""
    # Also when the report changes: an operator may have cleared what is still so.
    async for _ in changes(published, board.report):
        found = published.value
        blocked = {one.gpu: str(one) for one in found.left_out if one.gpu is not None}
        for gpu, what in blocked.items():
            board.open(gpu, Finding(reason=Reason.DEVICE_NODE, message=what))
        # A look that did not come to the nodes says nothing about them.
        if blocked or found.trouble is None:
            for gpu in board.report.value.devices.keys() - blocked.keys():
                board.close(gpu, Reason.DEVICE_NODE)


def policy(settings: Settings) -> Policy:
    """The configuration's rules between the two lists of Xids: what is ignored is so whatever a rule says."""
    given = settings.health
    enabled = Rule(name="agent.health.enabledXids", xids=given.enabled_xids, action=Action.WITHDRAW)
    ignored = Rule(name="agent.health.ignoredXids", xids=given.ignored_xids, action=Action.IGNORE)
    rules = (
        Rule(
            name=f"agent.health.rules[{number}]",
            xids=rule.xids,
            reasons=rule.reasons,
            action=Action(rule.action) if rule.action else None,
            cleared_by=ClearedBy(rule.cleared_by) if rule.cleared_by else None,
            after=rule.after,
            within=rule.within,
        )
        for number, rule in enumerate(given.rules)
    )
    return Policy(rules=(enabled, *rules, ignored))
