"""The events of a job, which are its only record, and their readers.

events    events.jsonl: one line for each event
fields    the kinds of events, and the fields of each
status    the job's state
view      the job's state as text for people
size      why the job has its number of nodes
recovery  the cost of each fault
resize    the cost of each resize
"""
