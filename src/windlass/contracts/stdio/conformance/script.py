"""The scripts of the cases, in the language of the worker. Inputs are `x` and, for one of them, `file`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from windlass.errors import Invalid


class Scripts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scripts with one meaning in every language; those that may be missing leave out their cases."""

    echo: str  # results in `x`, a text
    fail: str  # fails, with `no good` in its error
    broken: str  # is no script at all
    wait: str  # waits until it is cancelled, and then ends as cancelled
    touch: str  # makes the file `x`
    await_file: str  # waits until there is a file `x`, and results in it
    append: str  # appends `x` to the file `file`
    big: str  # results in 100,000 times the letter x
    noise: str  # prints without a newline, then results in `x`
    eat: str  # reads all of stdin, then results in `x`
    update: str | None = None  # sends an update: message `half`, current 1, maximum 2


LANGUAGES = {
    "python": Scripts(
        echo="x",
        fail="raise ValueError('no good')",
        broken="this is ( no script",
        wait="import time\nwhile not task.cancel_requested: time.sleep(0.01)\ntask.cancel()",
        touch="open(x, 'w').close()",
        await_file="import os, time\nwhile not os.path.exists(x): time.sleep(0.01)\nx",
        append="with open(file, 'a') as opened: opened.write(x)",
        big="'x' * 100_000",
        noise="print('noise', end='', flush=True)\nimport os\nos.write(1, b'noise')\nos.system('printf noise')\nx",
        eat="import sys\nsys.stdin.read()\nx",
        update="task.update('half', 1, 2)",
    ),
    "sh": Scripts(
        echo='printf %s "$x"',
        fail="echo no good >&2; exit 3",
        broken="if then fi (",
        wait="sleep 600",
        touch=': > "$x"',
        await_file='while [ ! -e "$x" ]; do sleep 0.02; done; printf %s "$x"',
        append='printf %s "$x" >> "$file"',
        big="head -c 100000 /dev/zero | tr '\\0' x",
        noise='printf noise >&2; printf %s "$x"',
        eat='cat > /dev/null; printf %s "$x"',
        update="echo '1 2 half' >&3",
    ),
    "javascript": Scripts(
        echo="x",
        fail="throw new Error('no good')",
        broken="this is ( no script",
        wait="const nothing = new Int32Array(new SharedArrayBuffer(4))\n"
        "while (!task.cancelRequested) Atomics.wait(nothing, 0, 0, 10)\ntask.cancel()",
        touch="require('fs').writeFileSync(x, '')",
        await_file="const fs = require('fs')\n"
        "new Promise((done) => { const look = () => (fs.existsSync(x) ? done(x) : setTimeout(look, 10)); look() })",
        append="require('fs').appendFileSync(file, x)",
        big="'x'.repeat(100000)",
        noise="process.stdout.write('noise'); require('fs').writeSync(1, 'noise')\n"
        "require('child_process').execSync('printf noise', {stdio: 'inherit'})\nx",
        eat="require('fs').readFileSync(0)\nx",
        update="task.update('half', 1, 2)",
    ),
}


def read_scripts(language: str) -> Scripts:
    """The scripts of a known language, or of a JSON file with the names above."""
    if language in LANGUAGES:
        return LANGUAGES[language]
    if not language.endswith(".json"):
        raise Invalid(f"must be {', '.join(LANGUAGES)} or a .json file", field="language")
    try:
        return msgspec.json.decode(Path(language).read_bytes(), type=Scripts)
    except (OSError, msgspec.MsgspecError) as error:
        raise Invalid(f"{language}: {error}", field="language") from None
