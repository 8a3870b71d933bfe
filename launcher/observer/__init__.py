"""The observer: a process beside the supervisor that tells others what the events say. The supervisor never waits.

notices   which events are told, and in which words
delivery  sends notices and heartbeats, in threads, with retries
otlp      exports metrics to a collector of OpenTelemetry
process   follows the events
start     starts it and ends it with the supervisor
"""
