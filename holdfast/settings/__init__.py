"""Reads and validates files that people write: job files, and the site's node, health, heal and hook settings.

yaml_file   reads a YAML file as plain data
yaml_core   parses a restricted YAML 1.2
keys        the description of each key in a model
aliases     other names that files may use for keys
validation  validates plain data against a model and reports all errors at once
schema      makes a JSON Schema from a model
errors      SettingsError

A model is a frozen dataclass. The metadata of its fields describe its keys; see `keys`. Models import only the standard
library. `validation` uses pydantic, and imports it only when it validates something.
"""
