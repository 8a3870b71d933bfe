"""Leadership of a job: one process at a time supervises it, for a numbered term.

terms       the files of the terms, and the lease that the holder of the newest term renews
lease       a supervisor's leadership: takes a term, renews the lease, notices a take-over
succession  a runner's part: finds the supervisor, and starts a standby if there is none
requeue     repeats the request for a requeue while the scheduler does not answer
"""
