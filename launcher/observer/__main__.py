"""Runs the observer: `python -m launcher.observer JOB_DIR JOB_ID STARTED_S`."""

import sys

from launcher.observer.process import main

sys.exit(main(*sys.argv[1:]))
