"""Adapters: one module for each framework. Importing this package imports none of them.

    transformers   holdfast(trainer).train(): transformers' Trainer and its subclasses
    lightning      Trainer(...).fit(module, loader): Lightning's Trainer
    deepspeed      engine_state(engine): an engine with ZeRO stage 1 or 2
    torchtitan     CheckpointManager.Config(enable=True): torchtitan's Trainer
    litdata        ChunkDataset(url): litData's chunks in a bucket, under an ElasticSampler
    megatron       ShardedState(ckpt), LocalCheckpointManager(ckpt): Megatron-core's two ways to save

    parts          what adapters share

An adapter restores what an undisturbed run would have at that step: weights, optimizer, schedules, random numbers, the
position in the data, and the framework's own counters and logs.
"""
