"""Machine, its host, server or bucket killed with `kill -9` at each step of an export, from the request to the
clean-up: the documented outcome, and nothing left behind. The steps are those of the flow in the contract's section 8.

One export stands at each step when somebody is killed, so that one kill tries all of them.
"""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.e2e.site import API_KEY, SIZE, Site, count, open_site, soon
from tests.kit.s3 import SECRET, S3Server, open_s3

pytestmark = pytest.mark.slow

ON_ITS_MACHINE = ("spawned", "exporting", "uploading", "uploading through the server", "uploaded", "calling back")
AFTERWARDS = ("before the download", "downloading", "cleaning up")
STEPS = ("taken", *ON_ITS_MACHINE, *AFTERWARDS)
SIZES = {"downloading": 100_000_000, "cleaning up": 40_000_000}  # more than is on the way to who reads slowly
READ = {"downloading": 20_000_000, "cleaning up": 1}


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with open_s3() as server:
        yield server


@pytest.fixture
def site(database: str, s3: S3Server) -> Iterator[Site]:
    with open_site(database, s3) as site:
        yield site
        for secret in (SECRET, API_KEY, "sig="):
            assert secret not in site.log()


class Exports:
    """One at each step, and whoever reads what it has made."""

    def __init__(self, site: Site, *, leaving: bool) -> None:
        """`leaving`: machines that have told their success are still there."""
        self.site, self.pids = site, dict[str, int]()
        at = {step: step.partition(" through")[0] for step in ON_ITS_MACHINE}
        self.names = {
            step: site.export(at[step], way="server" if step.endswith("the server") else "bucket")
            for step in ON_ITS_MACHINE
        } | {step: site.export("leaving" if leaving else "", size=SIZES.get(step, SIZE)) for step in AFTERWARDS}
        for step in (*ON_ITS_MACHINE, *(AFTERWARDS if leaving else ())):
            self.pids[step] = site.reached(self.names[step])
        for step in AFTERWARDS:
            assert site.ended(self.names[step])["status"] == "success"
        self._begin_to_download()
        soon(lambda: len(site.s3.uploads()) == 2)  # those that are in the middle of it

    def _begin_to_download(self) -> None:
        """One client has a part of its file. Of another one, one client has all and one only the beginning, so that it
        is kept for a moment longer."""
        self.reads: dict[str, http.client.HTTPResponse] = {}
        for step, size in READ.items():
            answer = self.site.ask("GET", f"/download/{self.names[step]}", slowly=True)
            assert len(answer.read(size)) == size
            self.reads[step] = answer
        assert self.site.download(self.names["cleaning up"]) == (200, SIZES["cleaning up"])
        soon(lambda: self.site.downloaded(self.names["cleaning up"]))
        assert not self.site.downloaded(self.names["downloading"])

    def rest(self, step: str) -> int:
        """How many bytes whoever has begun to read gets in all."""
        with self.reads[step] as answer:
            return READ[step] + count(answer)

    def go(self) -> None:
        for name in self.names.values():
            self.site.go(name)

    def outcomes(self) -> dict[str, str]:
        """How each has ended. Whatever has succeeded can be downloaded, once more where that broke off."""
        ends = {step: self._end(step) for step in self.names}
        self.site.nothing_is_left()
        return ends

    def _end(self, step: str) -> str:
        told = self.site.ended(self.names[step])
        if told["status"] == "error":
            return str(told["error"])
        if step == "cleaning up":
            return "success"
        status, size = self.site.download(self.names[step])
        assert (status, size) == (200, told["output_file_size"]), step
        return "success"


def test_a_machine_that_is_killed_is_told_of_and_leaves_nothing(site: Site) -> None:
    exports = Exports(site, leaving=True)
    for pid in exports.pids.values():
        with suppress(ProcessLookupError):  # one that had told its success some time ago may have been sent away
            os.kill(pid, signal.SIGKILL)
    assert {step: exports.rest(step) for step in READ} == SIZES
    del exports.names["downloading"]  # somebody has it now

    assert exports.outcomes() == {
        **dict.fromkeys(ON_ITS_MACHINE, "the machine was killed by signal 9"),
        "before the download": "success",
        "cleaning up": "success",
    }


def test_a_host_that_is_killed_takes_its_machine_along_and_leaves_nothing(site: Site) -> None:
    """What keeps a machine is gone, and the machine with it."""
    exports = Exports(site, leaving=False)
    for step in ON_ITS_MACHINE:
        os.kill(int((site.machine(exports.names[step]) / "begun").read_text()), signal.SIGKILL)
    assert {step: exports.rest(step) for step in READ} == SIZES
    del exports.names["downloading"]

    assert exports.outcomes() == {
        **dict.fromkeys(ON_ITS_MACHINE, "the machine ended: killed"),
        "before the download": "success",
        "cleaning up": "success",
    }


def test_a_server_that_is_killed_is_replaced_and_every_export_succeeds(site: Site) -> None:
    exports = Exports(site, leaving=False)
    exports.names["taken"] = site.export_held()
    site.kill_server()
    assert exports.rest("downloading") < SIZES["downloading"]
    exports.rest("cleaning up")
    exports.go()  # with nobody there whom they could tell
    site.start()
    site.call("POST", "/api/v1/queues/held/resume")

    assert exports.outcomes() == dict.fromkeys(STEPS, "success")


def test_a_bucket_that_is_killed_comes_back_and_every_export_succeeds(site: Site, s3: S3Server) -> None:
    exports = Exports(site, leaving=False)
    exports.names["taken"] = site.export_held()
    site.kill_store()
    site.call("POST", "/api/v1/queues/held/resume")
    exports.go()
    with site.ask("GET", f"/download/{exports.names['before the download']}") as answer:
        assert answer.status == 503
    assert exports.rest("downloading") < SIZES["downloading"]
    exports.rest("cleaning up")
    s3.start()

    assert exports.outcomes() == dict.fromkeys(STEPS, "success")
