"""What is stored, and how it is trusted.

layout    which bytes of a shard belong to which tensor, and the state's structure around them
blocks    checksums over fixed-size blocks of a shard
shard     the record beside a shard: who wrote it, for which step, its layout and checksums
manifest  one committed step in a lower tier: every shard and where its bytes lie
packing   what a manifest's shards have in common, stored once
values    Python values as JSON and back
kinds     objects that JSON does not have: bytes, paths, dates, enums, dtypes
boxes     which parts of which chunks make up a box
spread    which other ranks hold parts of a tensor
arena     the reused slots in a node's memory that shards are staged into
pages     mapped many at a time, before they are used
copying   plain copies by several threads
board     one row per worker: its step, its boundary; read by the node's runner and agent
files     durable, private writes
"""
