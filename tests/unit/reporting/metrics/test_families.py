"""How families of series read, for Prometheus and in OpenMetrics."""

import pytest

from node_agent.reporting.metrics.families import Family, Series, labels_text, text
from tests.fakes.scraped import of_openmetrics, of_text

ENERGY = Family(
    name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    kind="counter",
    help="Energy (in mJ).",
    series=(Series(labels='gpu="0"', value=5),),
)


def test_a_counter_keeps_its_name_and_its_type() -> None:
    assert text([ENERGY]) == (
        "# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Energy (in mJ).\n"
        "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 5\n'
    )


def test_in_openmetrics_a_counter_of_such_a_name_is_of_unknown_type_and_is_read_by_that_name() -> None:
    (family,) = of_openmetrics(text([ENERGY], openmetrics=True) + "# EOF\n")
    assert (family.type, family.samples[0].name) == ("unknown", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")


def test_a_family_without_series_is_not_there() -> None:
    assert text([Family(name="nothing", kind="gauge", help="Nothing.", series=())]) == ""


@pytest.mark.parametrize(("value", "written"), [(0, "0"), (98304, "98304"), (76.25, "76.250000"), (0.5, "0.500000")])
def test_whole_figures_are_written_whole_and_others_with_six_decimals(value: float, written: str) -> None:
    family = Family(name="figure", kind="gauge", help="Figure.", series=(Series(labels='gpu="0"', value=value),))
    assert text([family]).splitlines()[-1] == f'figure{{gpu="0"}} {written}'


def test_labels_come_back_whatever_is_in_them() -> None:
    labels = {"modelName": 'NVIDIA "A"\\B', "note": "two\nlines", "none": ""}
    family = Family(name="figure", kind="gauge", help="Figure.", series=(Series(labels=labels_text(labels), value=1),))
    for parsed in (of_text(text([family])), of_openmetrics(text([family], openmetrics=True) + "# EOF\n")):
        (found,) = parsed
        assert found.samples[0].labels == {"modelName": 'NVIDIA "A"\\B', "note": "two\nlines"}
