"""Files that people write, read and validated: job files, and the site's node, health and heal settings.

yaml_file   reads a file as plain data; yaml_core.py has the rules: YAML 1.2, and less of it
keys        what a model says of each of its keys
aliases     other names for keys
validation  plain data against a model: all errors at once
schema      a model as JSON Schema
models      the models of the site's files

A model is a frozen dataclass whose fields' metadata describe its keys; see `keys`. Models need nothing but the standard
library. pydantic does the validating and is imported only when something is validated.
"""
