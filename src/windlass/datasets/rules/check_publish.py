"""Rules of publications: who writes a dataset, under which name, and with which schema."""

from __future__ import annotations

from windlass.datasets.rules.check_job import check_output
from windlass.datasets.rules.dag import Dag, Output, Publication, Storage, WriteMode
from windlass.datasets.rules.fact import Facts
from windlass.datasets.rules.findings import Findings
from windlass.datasets.rules.problem import Code, Path, shown
from windlass.datasets.rules.schema import faults


def check_publications(dag: Dag, facts: Facts, findings: Findings) -> None:
    """Check every publication that was read."""
    taken: dict[Output, str] = {}
    for publication in dag.publish:
        path = ("publish", publication.name)
        owner = facts.foreign(dag.name, publication.name)
        if owner is not None:
            message = f"the name {publication.name} belongs to a dataset of DAG {owner.dag}: choose another"
            findings.key(path, Code.DATASET_TAKEN, message)
        if not findings.readable(*path):
            continue
        _check_writers(dag, publication, path, findings, taken)
        _check_storage(publication, path, findings)
        _check_schema(publication, path, findings)


def _check_writers(
    dag: Dag, publication: Publication, path: Path, findings: Findings, taken: dict[Output, str]
) -> None:
    if not findings.whole(*path, "from"):
        return
    several = findings.is_list(*path, "from")
    for number, output in enumerate(publication.writers):
        place = (*path, "from", number) if several else (*path, "from")
        if not check_output(dag, findings, output.job, output.output, place):
            continue
        if (other := taken.setdefault(output, publication.name)) != publication.name:
            message = f"output {output.output} of {shown(output.job)} is published already, as {other}"
            findings.value(place, Code.DATASET_TAKEN, message)
        if publication.write_mode is WriteMode.DIRECT and not dag.job[output.job].trusted:
            message = f"{shown(output.job)} is not trusted and must not write to the database: use buffered"
            findings.value((*path, "write_mode"), Code.DIRECT_UNTRUSTED, message)
    if len(publication.writers) > 1 and not publication.buffered and findings.readable(*path, "write_mode"):
        message = "only a dataset with write_mode buffered has several writers"
        findings.value((*path, "from"), Code.MULTI_WRITER, message)


def _check_storage(publication: Publication, path: Path, findings: Findings) -> None:
    if not findings.readable(*path, "storage") or not findings.readable(*path, "write_mode"):
        return
    if publication.storage is Storage.POSTGRES and publication.write_mode is None:
        message = "write_mode is missing: buffered goes through the sink, direct lets the job write"
        findings.value((*path, "write_mode"), Code.MISSING_FIELD, message)
    if publication.storage is Storage.S3 and publication.write_mode is not None:
        findings.key((*path, "write_mode"), Code.BAD_VALUE, "write_mode is for storage postgres: take it out")


def _check_schema(publication: Publication, path: Path, findings: Findings) -> None:
    place, schema = (*path, "schema"), publication.schema
    if not findings.readable(*place):
        return
    if schema is None:
        if publication.buffered and not findings.has(*place):
            message = "a buffered dataset needs a schema, which the sink holds every row against"
            findings.value(place, Code.SCHEMA_MISSING, message)
        return
    if publication.buffered and not schema.unique and not findings.has(*place, "unique"):
        message = "the schema of a buffered dataset needs unique, so that a repeated batch adds no row twice"
        findings.value((*place, "unique"), Code.SCHEMA_INVALID, message)
    for fault in faults(schema) if findings.whole(*place) else ():
        code = Code.RESERVED_COLUMN if fault.reserved else Code.SCHEMA_INVALID
        findings.value((*place, *fault.path), code, fault.message)
