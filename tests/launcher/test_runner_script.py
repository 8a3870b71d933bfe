"""What users see of an exception: their frames, not ours."""

from __future__ import annotations

import subprocess
import sys

from launcher.runner.script import script_traceback

TALKER = """
import sys
from pathlib import Path
from launcher.runner.script import _redirect_output
_redirect_output(Path("/dev/full"))
for _ in range(10_000):
    print("a line that has nowhere to go")
sys.stderr.write("neither has this")
sys.stdout.flush()
sys.exit(7)
"""


def test_a_log_that_cannot_be_written_does_not_stop_the_script() -> None:
    assert subprocess.run([sys.executable, "-c", TALKER], check=False, timeout=60).returncode == 7


def test_frames_that_lead_to_the_script_are_left_out() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/lib/launcher/runner/script.py", line 36, in run_script\n'
        '    runpy.run_path(script, run_name="__main__")\n'
        '  File "/job/train.py", line 3, in <module>\n'
        "    boom()\n"
        "ValueError: 1\n"
    )
    shown = script_traceback(text, "/job/train.py")
    assert shown == (
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    boom()\nValueError: 1\n'
    )


def test_traceback_without_the_script_stays_whole() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nSyntaxError: bad\n'
    assert script_traceback(text, "/job/train.py") == text
