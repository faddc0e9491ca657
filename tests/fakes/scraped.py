"""What a scrape says, read as Prometheus would; the parsers are the client library's."""

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

_of_text: Any = text_string_to_metric_families
_of_openmetrics: Any = openmetrics_parser.text_string_to_metric_families

Found = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""By the name of the series: their labels and values."""


def of_text(text: str) -> list[Metric]:
    """As Prometheus reads it: the library alone would have every counter be called ``_total``."""
    return list(_of_text(re.sub(r"^# TYPE (DCGM_\w+) counter$", r"# TYPE \1 untyped", text, flags=re.MULTILINE)))


def of_openmetrics(text: str) -> list[Metric]:
    """Raises ValueError where it is not valid."""
    return list(_of_openmetrics(text))


def series(metrics: list[Metric]) -> Found:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for metric in metrics:
        for sample in metric.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
