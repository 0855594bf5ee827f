"""Planning beyond the machine: link loads of full-size fabrics, as arrays and without packets.

The rules are those of ``controllers.schemes``; what differs is that thousands of flows take each
hop together. Fabrics come from ``catalogue`` (the published sizes) or from any topology.
"""
