"""Connections between the hosts of a job. A peer must prove that it knows the job's secret before its data are read.

channel          authenticated frames between supervisor and runners
handshake_limit  limits the connections that have not proved the secret yet
listener         accepts connections, some at a time
links            the supervisor's connections to all runners; launcher.core.liveness judges them
reports          the runners' messages as inputs of the decision core
job_socket       a socket that only the job's hosts reach
host_addresses   the addresses of these hosts
"""
