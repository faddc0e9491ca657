"""The drawing of a grant's life is true to the code, and can be read by itself."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

import node_agent
from tools.diagram import LIVES, Life, grant

CODE = Path(node_agent.__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.title)
def test_each_step_is_done_by_a_module_that_is_there(life: Life) -> None:
    named = [step.module for step in life.steps if step.module]
    assert len(named) > 5
    assert [module for module in named if not (CODE / module).is_file()] == []


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.title)
def test_each_step_is_between_those_who_take_part(life: Life) -> None:
    assert {who for step in life.steps for who in (step.source, step.target)} == set(life.lanes)


def test_it_is_one_drawing_that_says_every_step_and_loads_nothing() -> None:
    drawn = ElementTree.fromstring(grant())
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert [step.what for life in LIVES for step in life.steps if step.what not in texts] == []
    assert {element.tag.removeprefix(SVG) for element in drawn.iter()} <= {
        *("svg", "title", "style", "rect", "g", "line", "path", "text")
    }
    assert not any("href" in attribute for element in drawn.iter() for attribute in element.attrib)


def test_no_step_lies_outside_the_drawing() -> None:
    drawn = ElementTree.fromstring(grant())
    width, height = map(int, drawn.attrib["viewBox"].split()[2:])
    tops = [int(group.attrib["transform"].split()[1].rstrip(")")) for group in drawn.iter(f"{SVG}g")]
    lines = [line.attrib for group in drawn.iter(f"{SVG}g") for line in group.iter(f"{SVG}line")]
    assert all(0 <= int(line[end]) <= width for line in lines for end in ("x1", "x2"))
    assert tops[0] == 0
    assert tops[1] + max(int(line["y2"]) for line in lines) <= height
