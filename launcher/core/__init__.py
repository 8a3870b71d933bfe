"""The decision core: `decide(state, input, now_s) -> (state, commands)`. Pure: no file, clock or asyncio.

    state       what is known of the job: its members, the attempt, the agents' world, requests
    inputs      what can happen
    commands    what the driver is to do
    decision    decide(): hands each input to the part of the state that it concerns, then moves the job on
    stages      the way of the job as a whole, from stage to stage; ending: its end
    nodes       what is reported of nodes and their runners
    turn        the work space of one decide()
    members     which nodes are ready, which train, which are out and why
    attempt     one attempt, from the choice of its nodes to its end; attempt_reports: what nodes report of it;
                teardown: nothing of it is left
    agent_world the checkpoint agents of an attempt
    launch      the start of the runners
    requests    stop and cancel, by a user, a signal or the scheduler; the time limit
    choice      the nodes of the next attempt, and its holders
    boosters    allocations beside the base's, which come from the queue and may be preempted
    resize      the size of the job: boosters, growing and shrinking
    recovery    the recovery ladder: after a fault, the lowest rung that serves
    hang        whether the workers hang, and which rank is at fault
    faults      what ended an attempt, from the workers' reports
    replay      the part of the state that events.jsonl holds

Inputs carry monotonic seconds of the driver's clock in `now_s`; deadlines in the state are of the same clock. The state
is frozen and holds persistent maps (rpds), so that a decision costs the same at 4,096 nodes as at four.
"""

from launcher.core.decision import begin, decide

__all__ = ["begin", "decide"]
