"""The labels of all simulated nodes, as ``node-agent labels`` prints them; they are in ``tests/golden/labels``.

``python -m tests.golden.labels_examples`` writes the files anew; look at the difference before it is committed.
"""

import sys
from pathlib import Path

from click.testing import CliRunner

from node_agent.cli.main import cli
from node_agent.hardware.simulated import profile_names

FOLDER = Path(__file__).parent / "labels"
# A profile, and the strategy by which its MIG devices are offered.
EXAMPLES = {
    **{profile: (profile, "none") for profile in profile_names()},
    "a30-2-single": ("a30-2", "single"),
    "a30-2-mixed": ("a30-2", "mixed"),
}


def written(example: str) -> str:
    profile, strategy = EXAMPLES[example]
    runner = CliRunner(env={"MIG_STRATEGY": strategy})
    outcome = runner.invoke(cli, ["labels", "--simulate", profile], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def update() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.txt").write_text(written(example))


if __name__ == "__main__":
    update()
    sys.stdout.write(f"labels of {len(EXAMPLES)} nodes written to {FOLDER}\n")
