"""The events of a job, which are its only record, and their readers.

events    events.jsonl: one line for each event
fields    the kinds of events: meaning, words, colour and fields of each
wording   words that depend on an event's fields; colours
status    the job's state
outcome   the outcome of a job with its reason, in result.json
tail      reads growing files
usage     node-hours of each account, own and borrowed
stored    the folded events in fold.json, so that an old job's status costs no more than a new one's
steps     the step of each node now, in steps.json
pace      the speed over the job's whole time
view      the job's state as text for people
size      why the job has its number of nodes
recovery  the cost of each fault
why       each fault with what it was, what was done, what it cost, and what to do
resize    the cost of each resize
"""
