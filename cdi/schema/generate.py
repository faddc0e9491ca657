"""Generate the check of a CDI spec, ``node_agent/wire/cdi_schema.py``, from the schema beside this; by ``make protos``.

``python cdi/schema/generate.py [ROOT]`` writes it under ROOT, the root of the clone unless it is given. Compiled at run
time, the schema would cost each start of the agent 30 ms and 5 MiB.
"""

import json
import sys
from pathlib import Path

import fastjsonschema

SCHEMA = Path(__file__).resolve().with_name("cdi.schema.json")
MODULE = "node_agent/wire/cdi_schema.py"
HEADER = '"""@generated from cdi/schema by ``make protos``, never edited: ``validate`` checks a CDI spec."""\n'


def generate(root: Path) -> None:
    """Replace the module."""
    schema = json.loads(SCHEMA.read_text(), object_hook=_without_prose)
    (root / MODULE).write_text(f"{HEADER}\n{fastjsonschema.compile_to_code(schema, use_default=False)}")


def _without_prose(part: dict[str, object]) -> dict[str, object]:
    """A part of the schema as its errors carry it along."""
    return {key: value for key, value in part.items() if key != "description"}


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEMA.parents[2])
