"""Drives the decision core of one job on its batch host: brings in what happens, performs what the core commands.

    entry.py            a supervisor's life from outside: start, take-over, what it leaves
    supervisor.py       the driver: inbox, timer, commands, the end
    job_facts.py        what the core has to know of the job
    signals.py          signals as inputs; user_requests.py: stop.json and scale.json as inputs
    scheduler_calls.py  the scheduler's answers as inputs
    processes.py        what it starts: runners and checkpoint agents
    own_checkpoints.py  follows the checkpoints that a script writes by itself
    batch_process.py    the batch script's process: runs a supervisor as its child, or waits for the one on another node
    standby.py          takes over from a supervisor that is lost
    recorder.py         writes the events, in a thread
    allocations.py      the run's boosters
    drains.py           which nodes the scheduler drains
    folder.py           the job's folder and the supervisor's log

Public names: supervise, Outcome.
"""

from launcher.history.outcome import Outcome
from launcher.supervisor.entry import supervise

__all__ = ["Outcome", "supervise"]
