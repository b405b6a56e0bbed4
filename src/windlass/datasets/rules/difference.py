"""Which fields of a job or a publication differ between two files, as dotted paths in the words of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from windlass.datasets.rules.dag import Dag, Input, Job, Output, Publication

_LIMITS = {"max_concurrency": "scaling", "max_queue_age_s": "max_queue_age", "idle_timeout_s": "idle_timeout"}

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

Fields = dict[str, object]


def job_fields(dag: Dag, job: Job, named_by: Dag) -> Fields:
    """A job as the file has it, with effective limits, and with what the publications of its outputs decide. These have
    the names of `named_by`: another name alone changes nothing about the job."""
    found: Fields = msgspec.to_builtins(job)
    found.pop("reset_outputs", None)
    found |= {"inputs": [_input(source) for source in job.inputs], "bootstrap": {"reset_outputs": job.reset_outputs}}
    limits: Fields = msgspec.to_builtins(found.pop("limits", {}))
    found |= {
        _LIMITS.get(key, key): {key: value} if key == "max_concurrency" else value for key, value in limits.items()
    }
    places: Fields = {}
    for index in range(job.outputs):
        output = Output(job.name, index)
        if publication := dag.published.get(output):
            places[named_by.published.get(output, publication).name] = _place(publication)
    return found | {"publish": places}


def publication_fields(publication: Publication) -> Fields:
    """A publication as the file has it."""
    found: Fields = msgspec.to_builtins(publication)
    age = found.pop("max_age_s", None)
    del found["name"]
    found["from"] = found.pop("writers")
    return found | {"freshness": {"max_age": age}}


def changed_fields(before: object, after: object) -> tuple[str, ...]:
    """The paths whose values differ, in order. Lists of the same length are compared item by item."""
    return tuple(sorted(_differences(before, after, "")))


def value_at(fields: object, path: str) -> object:
    """The value at a path of `changed_fields`. None if there is none, also if a key has a dot in it."""
    for name, index in _STEP.findall(path):
        if index:
            fields = fields[int(index)] if isinstance(fields, list | tuple) and int(index) < len(fields) else None
        else:
            fields = fields.get(name) if isinstance(fields, dict) else None
    return fields


def _differences(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif before != after or type(before) is not type(after):
        yield path


def _input(source: Input) -> Fields:
    found: Fields = msgspec.to_builtins(source)
    place = {"dataset": source.dataset} if source.job is None else {"job": source.job, "output": source.output}
    return {key: value for key, value in found.items() if key not in ("job", "output", "dataset")} | {"from": place}


def _place(publication: Publication) -> Fields:
    found: Fields = msgspec.to_builtins(publication)
    return {key: found.get(key) for key in ("storage", "write_mode", "schema")}
