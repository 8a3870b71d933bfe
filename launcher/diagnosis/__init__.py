"""Why an attempt failed, and why it is slow, from what its ranks and nodes report. Pure, and standard library only.

rules   the table of failures: pattern, class, domain, advice, source
match   which rule a failure's lines match
cause   finds the cause among the failed ranks, and folds the consequences on other ranks under it
policy  what follows a fault: the job file's restart.on, and the defaults
slow_rank  finds the ranks for which all others wait
hang_facts, hang_verdict  what is known of each rank when the workers hang; for which rank the others wait
ras     which processes NCCL finds missing or behind
"""

from launcher.diagnosis.cause import Cause, Diagnosis, NodeEvidence, WorkerFailure, diagnose, find_cause
from launcher.diagnosis.rules import Domain, FaultClass

__all__ = ["Cause", "Diagnosis", "Domain", "FaultClass", "NodeEvidence", "WorkerFailure", "diagnose", "find_cause"]
