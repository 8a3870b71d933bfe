"""The decision core: `decide(state, input, now_s) -> (state, commands)`. Pure: no file, clock or asyncio.

    state       the state of the job: members, attempt, agents' world, requests
    inputs      everything that can happen
    commands    everything that the driver can be told to do
    decision    decide(): passes each input to the module that handles it, then advances the job
    stages      the stages of the job; ending: its end
    nodes       reports about nodes and their runners
    turn        the working state of one decide()
    members     the nodes: which are ready, which train, which are out and why
    attempt     one attempt, from the choice of its nodes to its end
    attempt_reports  reports about an attempt
    teardown    ends all processes of an attempt
    agent_world the checkpoint agents of an attempt
    launch      the start of the runners
    liveness    the connections to runners: which are lost or in doubt, and whether the supervisor is cut off itself
    succession  which nodes train first, who takes over; exclusion: the nodes that a requeue leaves out
    requests    stop and cancel, by a user, a signal or the scheduler; the time limit
    choice      chooses the nodes of the next attempt, and its holders
    boosters    allocations in addition to the base, which may be preempted
    resize      grows and shrinks the job
    departure   leaves nodes before they fail; marks: which, and why
    outcomes    how attempts and jobs end, with the exit codes; stop_reasons, rungs: why they stop, how they begin
    recovery    the recovery ladder: after a fault, the lowest rung that serves
    hang        detects hangs
    stragglers  nodes for which all others wait
    faults      finds what ended an attempt, from the workers' reports
    gains       the progress that attempts made, for the recovery ladder
    replay      the part of the state that is computed from events.jsonl

`now_s` is the time of each input on the driver's monotonic clock. Deadlines in the state use the same clock. The state
is frozen and consists of persistent maps (rpds), so a decision costs the same at 4,096 nodes as at four.
"""

from launcher.core.decision import begin, decide

__all__ = ["begin", "decide"]
