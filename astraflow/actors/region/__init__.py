"""A region's keeper: what brings tasks into another region and its results home.

bringer   brings tasks from the hub into a region, some ahead of its slots
keeper    everything that a region does beside its actors
members   who is in a region, by the member records that its actors write there
mirrors   keeps a region's copies of the weights as short as the hub's
presence  what the hub is told of a region
uplink    sends what the region's actors say to the hub
"""
