"""The local cluster: jobs without a scheduler, on this machine.

scheduler.py   status, cancel and liveness of its jobs, by the supervisor's process
submission.py  the submitit executor, which starts a supervisor, and its job
cluster.py     nodes as process groups on this machine; kill_node() kills one
"""
