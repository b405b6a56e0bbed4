"""For programs that run on a machine which lives for one task: a user's own export format takes a dozen lines.

    from windlass.sdk import machine

    def export(job: machine.Job) -> dict[str, int]:
        out = job.output(f"{job.pi}.txt", content_type="text/plain")
        out.path.write_text(f"all about {job.pi}")
        return {"entities_exported": 1}

    if __name__ == "__main__":
        machine.main(export)

Around it: the environment is read and checked, the file is uploaded as a stream, the result is called back with
patience, temporary files go, the exit code is 0 or 1, and SIGTERM ends it in good order.
"""

from windlass.sdk.machine.job import ExportError, Job, Output
from windlass.sdk.machine.run import main, run

__all__ = ["ExportError", "Job", "Output", "main", "run"]
