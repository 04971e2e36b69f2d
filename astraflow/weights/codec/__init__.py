"""The bytes of a weight version: what changed, packed. Pure: no asyncio, no torch.

byte_coding  small integers as one byte each, the rare large ones in a list of their own
changes      new values for a model that is already in memory somewhere
delta        a sparse update as bytes
differences  which elements differ between two versions
host_copy    a replica's own copy of one version in host memory, and how an update moves it to the next
payload      the frame around a delta's numbers
tensors      tensors without torch
"""
