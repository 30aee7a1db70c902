"""The field's methods beside cflower: one paper is one file, all on the same clients and budget.

Each file has ``run(federation, ...)``, whose further arguments are what the method must be given.
`federation.py` has the clients, `contest.py` the list of all methods, `own.py` cflower itself.
"""
