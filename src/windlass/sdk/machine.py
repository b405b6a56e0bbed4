"""For programs that run on a machine which is started for one task: a custom export format takes a dozen lines.

    from windlass.sdk import machine

    def export(job: machine.Job) -> dict[str, int]:
        out = job.output(f"{job.pi}.txt", content_type="text/plain")
        out.path.write_text(f"all about {job.pi}")
        return {"entities_exported": 1}

    if __name__ == "__main__":
        machine.main(export)

`main` reads and checks the environment, uploads the file as a stream, reports the result with retries, and removes
temporary files. The exit code is 0 or 1, and SIGTERM ends the program in an orderly way.
"""

from windlass.contracts.machine.worker.job import ExportError, Job, Output
from windlass.contracts.machine.worker.run import main, run

__all__ = ["ExportError", "Job", "Output", "main", "run"]
