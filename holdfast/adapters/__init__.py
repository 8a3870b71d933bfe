"""Adapters: one module for each framework. Importing this package imports none of them.

    transformers   holdfast(trainer).train(): transformers' Trainer and its subclasses
    lightning      Holdfast, a callback and a strategy: Lightning's Trainer

    rng            the states of all random number generators
    parts          what adapters share

An adapter restores what an undisturbed run would have at that step: weights, optimizer, schedules, random numbers, the
position in the data, and the framework's own counters and logs.
"""
