"""Operators that run in the server itself (`runtime: dispatcher`). Each is a pure function from the inputs of a task to
the events that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.datasets.operators.call import Call
from windlass.datasets.operators.range_aggregator import aggregate_ranges
from windlass.datasets.operators.range_splitter import split_range
from windlass.datasets.operators.source import emit
from windlass.datasets.rules.events import EventReport

OPERATORS: Mapping[str, Callable[[Call], list[EventReport]]] = {
    "cron_source": emit,
    "manual_source": emit,
    "webhook_source": emit,
    "range_aggregator": aggregate_ranges,
    "range_splitter": split_range,
}
