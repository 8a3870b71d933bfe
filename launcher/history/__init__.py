"""The single record of a job, and its readers.

events    events.jsonl: one line for each decision; fields: what each kind of event holds
status    how the job stands by them; view: the same for people
recovery  what each fault cost
"""
