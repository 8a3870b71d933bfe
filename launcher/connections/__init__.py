"""Connections between the hosts of a job. A peer proves the job's secret before it is read.

channel          authenticated frames between supervisor and runners
handshake_limit  how many connections may be unproven, and which go first
listener         accepts connections, some at a time
links            the supervisor's connections to all runners
reports          the runners' messages as inputs of the decision core
job_socket       a socket that only the job's hosts reach
host_addresses   the addresses of these hosts
"""
