"""The facts of a job from its events, for its report, its metrics and the dashboard.

facts     one fold of the events into all facts
timeline  the phases of a job, and the seconds in each class of time
tables    the facts as tables, and as CSV
settings  the job's settings without secrets
charts    the pictures of a report, as SVG
page      the report as one HTML file, and the pages of the dashboard
metrics   the facts in OpenMetrics
"""
