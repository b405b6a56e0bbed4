"""Prints plans and problems of DAG files. A plan is a list of what changes, marked as in a diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass.cli.output import console

HASH_SHOWN = 12  # characters of a plan's hash: enough to tell plans apart
MARKS = {
    "added": ("+", "green"), "made": ("+", "green"), "removed": ("-", "red"), "retired": ("-", "red"),
    "changed": ("~", "yellow"), "affected": ("~", "yellow"), "renamed": ("~", "yellow"), "schema": ("~", "yellow"),
    "settings": ("~", "dim"), "unchanged": ("=", "dim"),
}  # fmt: skip
VALUE_MAX = 60  # characters of a value that are shown
Values = Mapping[str, Mapping[str, str]]  # by job and field: the value before and after
WORDS = {"affected": "affected, since an input changes"}


def problem_lines(file: str, found: dict[str, Any]) -> Iterator[str]:
    """The problems and warnings of a file, as compilers print them."""
    for kind, prefix in (("problems", ""), ("warnings", "warning: ")):
        for problem in found.get(kind, ()):
            hint = f": {problem['hint']}" if problem.get("hint") else ""
            place = f"{file}:{problem['line']}:{problem['column']}"
            yield f"{place}: {prefix}{problem['message']}{hint} [{problem['code']}]"


def show_plan(plan: dict[str, Any], before: int | None, values: Values) -> None:
    """Prints a plan. `before` is the number of the active version; `values` are those of the fields that change."""
    name, start = plan["dag"], "new" if before is None else f"from version {before} (active)"
    console.print(Text.assemble((name, "bold"), ": ", "no changes, " * plan["noop"], start))
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(width=1)
    for style in ("no_wrap", "fold"):
        made.add_column(overflow="fold", no_wrap=style == "no_wrap")
    for change, subject, lines in _rows(plan, values):
        mark, style = MARKS[change]
        made.add_row("", Text(f"{mark} {subject}", style), Text("\n".join(lines)))
    if made.row_count:
        console.print(made, soft_wrap=False)
    for line in _rest(plan):
        console.print(line, soft_wrap=False)


def changed_values(plan: dict[str, Any], before: str, after: str) -> Values:
    """The values of the fields that differ between two files, as `1000 → 500`. Lists and mappings are left out."""
    from windlass.datasets.read_yaml import read  # only a plan with changes needs it
    from windlass.datasets.rules.difference import job_fields, value_at

    old, new = read(before).dag, read(after).dag
    if old is None or new is None:
        return {}
    jobs = {job.name: job for job in old.jobs}, {job.name: job for job in new.jobs}
    found: dict[str, dict[str, str]] = {}
    for name in (job["job"] for job in plan["jobs"] if job["change"] != "added" and job["fields"]):
        if name not in jobs[0] or name not in jobs[1]:
            continue
        fields = job_fields(old, jobs[0][name], new), job_fields(new, jobs[1][name], new)
        for path in next(job["fields"] for job in plan["jobs"] if job["job"] == name):
            pair = [value_at(each, path) for each in fields]
            if all(isinstance(value, str | int | float | None) for value in pair):
                found.setdefault(name, {})[path] = " → ".join(map(_shown, pair))
    return found


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= VALUE_MAX else f"{text[: VALUE_MAX - 1]}…"


def _rows(plan: dict[str, Any], values: Values) -> Iterator[tuple[str, str, list[str]]]:
    """What changes: how, what, and in what way."""
    for job in plan["jobs"]:
        if job["change"] != "unchanged":
            yield job["change"], job["job"], list(_job_lines(job, values.get(job["job"], {})))
    for dataset in plan["datasets"]:
        if dataset["change"] != "unchanged":
            yield dataset["change"], dataset["name"], [_dataset_line(dataset)]
        elif dataset.get("fields"):
            yield "settings", dataset["name"], [f"dataset, settings: {', '.join(dataset['fields'])}"]


def _job_lines(job: dict[str, Any], values: Mapping[str, str]) -> Iterator[str]:
    change = WORDS.get(job["change"], job["change"])
    fields = [f"{name} {values[name]}" if name in values else name for name in job["fields"]]
    yield f"{change}: {', '.join(fields)}" if fields and job["change"] != "added" else change
    owed = job["owed"]
    if owed["partitions"]:
        yield f"{count(owed['partitions'], 'partition')} to build"
    if owed["cursor"]:
        yield "reads its input from the beginning"
    if job["change"] in ("changed", "affected") and job.get("on_change") == "forward":
        yield "continues in the same version"
        return
    for output in job["outputs"]:
        dataset = output["dataset"] or f"output {output['output_index']}"
        if output["data"] == "reused" and job["change"] != "settings":
            yield f"{dataset} → a version that was built before"
        elif output["data"] == "built" and job["change"] != "added":
            yield f"{dataset} → new version"


def _dataset_line(dataset: dict[str, Any]) -> str:
    if dataset["change"] == "renamed":
        return f"dataset, renamed from {dataset['was']}"
    columns = dataset.get("columns") or {}
    parts = [f"+{name}" for name in columns.get("added", ())]
    parts += [f"-{name}" for name in columns.get("removed", ())]
    parts += [f"{column['name']} {column['from']} → {column['to']}" for column in columns.get("changed", ())]
    return f"dataset, {dataset['change']}{': ' if parts else ''}{', '.join(parts)}"


def _rest(plan: dict[str, Any]) -> Iterator[Text]:
    same = [job["job"] for job in plan["jobs"] if job["change"] == "unchanged"]
    if same and not plan["noop"]:
        yield _indented(f"= {', '.join(same)}: unchanged", "dim")
    for consumer in plan["consumers"]:
        reader = f"{consumer['dag']}/{consumer['job']}"
        work = f"{consumer['on_upgrade']} {count(consumer['owed'], 'partition')} after cutover"
        yield _indented(f"other DAGs: {reader} reads {consumer['dataset']}: {work}")
        for broken in consumer.get("breaks", ()):
            yield _indented(f"{reader} breaks: {broken['message']} [{broken['code']}]", "red")
    if plan["queues"]:
        yield _indented(f"queues to make: {', '.join(plan['queues'])}")


def _indented(text: str, style: str = "") -> Text:
    return Text(f"  {text}", style)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def is_plan(given: str, plan_hash: str) -> bool:
    """Whether a hash as a person gives it, at full length or as it is shown, is that of this plan."""
    return len(given) >= HASH_SHOWN and plan_hash.startswith(given)


def short(plan_hash: str) -> str:
    return plan_hash[:HASH_SHOWN]
