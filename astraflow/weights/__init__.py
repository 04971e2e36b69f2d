"""Weights on their way from a trainer to its replicas.

codec     the bytes of a weight version
transfer  weight versions over the bus
"""
