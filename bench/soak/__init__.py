"""A soak: a broker under mixed load by all roads for a long time, with clients that come and go.

What its clients were promised is verified, and that the broker takes no more memory, files and disk
at the end than at the begin. ``python -m bench.soak`` runs it; every part draws what it does from
one seed.
"""
