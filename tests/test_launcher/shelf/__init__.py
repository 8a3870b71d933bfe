"""A scheduler for the tests: a queue in a directory of this machine, whose jobs run one after the other.

queue.py      the queue: folders of jobs, and the process that starts them
scheduler.py  submission, place and state of its jobs
cluster.py    the nodes of a job: processes of its job on the shelf
"""
