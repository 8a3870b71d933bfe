"""Supervises one job on its batch host: decides, and has the runners do it.

    entry.py        a supervisor's life from outside: start, take-over, what it leaves
    supervisor.py   the state machine: nodes, attempts, the end
    past.py         what the events tell one that goes on with a job
    launch.py       the runners' start, and another where the scheduler has ended it for one node's sake
    readiness.py    what has to be there before an attempt can start
    time_limit.py   when the job's time is nearly up
    requests.py     what somebody outside asks for: signals, preemption, cancel
    requeue.py      the way back to the scheduler
    attempt.py      one attempt's life; host.py is what it needs of the supervisor
    agents.py       its checkpoint agents, and others in the place of lost ones
    evidence.py     what has been heard of an attempt
    clearing.py     leaves nothing of an attempt running
    ladder.py       after a fault: which rung
    own_checkpoints.py  progress of a script that keeps its own checkpoints
    roster.py       which nodes are ready, train, are out
    returns.py      nodes that were lost and come back
    hang.py         whether the workers hang, and which rank is at fault
    faults.py       what ended an attempt
    links.py        the runners' connections
    keeper.py       the batch script's process: a supervisor as its child, or a wait for the one elsewhere
    office.py       the supervisor's term and lease; whether another has taken over
    recorder.py     writes the events, in a thread
    outcome.py      how a job ends, and its exit codes
    folder.py       the job's folder and the supervisor's log

Public names: supervise, Outcome.
"""

from launcher.supervisor.entry import supervise
from launcher.supervisor.outcome import Outcome

__all__ = ["Outcome", "supervise"]
