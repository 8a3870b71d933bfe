"""Supervises one job on its batch host: decides, and has the runners do it.

    supervisor.py   the state machine: nodes, attempts, requests from outside, the end
    attempt.py      one attempt's life
    ladder.py       after a fault: which rung
    roster.py       which nodes are ready, train, are out
    hang.py         whether the workers hang, and which rank is at fault
    faults.py       what ended an attempt
    links.py        the runners' connections

Public names: supervise, Outcome.
"""

from launcher.supervisor.supervisor import Outcome, supervise

__all__ = ["Outcome", "supervise"]
