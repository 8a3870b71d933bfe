"""Drives the decision core of one job on its batch host: brings in what happens, performs what the core commands.

    entry.py            a supervisor's life from outside: start, take-over, what it leaves
    supervisor.py       the driver: inbox, timer, commands, the end
    processes.py        what it starts: runners and checkpoint agents
    links.py            the runners' connections
    reports.py          the runners' messages as inputs of the core
    own_checkpoints.py  progress of a script that keeps its own checkpoints
    keeper.py           the batch script's process: a supervisor as its child, or a wait for the one elsewhere
    office.py           the supervisor's term and lease; whether another has taken over
    recorder.py         writes the events, in a thread
    outcome.py          how a job ends, and its exit codes
    folder.py           the job's folder and the supervisor's log

Public names: supervise, Outcome.
"""

from launcher.outcome import Outcome
from launcher.supervisor.entry import supervise

__all__ = ["Outcome", "supervise"]
