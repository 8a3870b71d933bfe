"""Which process supervises a job: one at a time, in numbered terms.

terms       the terms in the job's folder, and the lease that the holder of the newest renews
lease       a supervisor's own leadership: takes a term, renews its lease, notices who took over
succession  a runner's view: which supervisor leads; starts a standby when there is none
"""
