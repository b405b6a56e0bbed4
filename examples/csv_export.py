"""A custom export format, as a program for a machine that is started for one task: an entity and its children as CSV.

Register it once, and Windlass serves `POST /export/csv`: see docs/howto/write-an-export-format.md.
"""

import csv
import json
import os
from urllib.request import urlopen

from windlass.sdk import machine


def manifest(pi):
    with urlopen(f"{os.environ['WINDLASS_MODS_API_URL']}/entities/{pi}", timeout=30) as answer:
        return json.load(answer)


def export(job):
    out = job.output(f"{job.pi}.csv", content_type="text/csv")
    entities = [job.pi, *manifest(job.pi).get("children_pi", [])]
    with out.path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter=job.options.get("delimiter", ","))
        rows.writerow(["pi", "version", "changed", "files"])
        for found in map(manifest, entities):
            rows.writerow([found["pi"], found["ver"], found["ts"], len(found["components"])])
    return {"entities_exported": len(entities)}


if __name__ == "__main__":
    machine.main(export)
