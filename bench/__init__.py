"""Benchmarks: the same load against Trivium and a peer broker on this machine, in turn.

One process runs the load (:mod:`bench.load`) against one server at a time (:mod:`bench.servers`);
what a run sends and expects is a row of :mod:`bench.scenarios`. ``docs/benchmarks.md`` says how the
figures are made and what they mean.
"""
