"""Energy meters, one file per source; a device finds them through the entry-point group `sparsyedge.meters`.

Each satisfies `sparsyedge.edge.device.energy.EnergyMeter` and takes the root of its sensors (/sys) as a parameter, so
tests can pass their own tree.
"""
