"""Flower's commands as they are, except for what a test of dying SuperNodes needs.

`python dying.py supernode NUMBER ...` is a SuperNode that is killed while it uploads its reply of
that number. `python dying.py superlink SECONDS ...` is a SuperLink that waits so long for the rest.
"""

import os
import signal
import sys
from itertools import count

if __name__ == "__main__":
    kind, number = sys.argv[1], int(sys.argv[2])
    sys.argv = [f"flower-{kind}", *sys.argv[3:]]
    if kind == "superlink":
        from flwr.supercore.corestate import in_memory_corestate, sql_corestate

        for state in (in_memory_corestate, sql_corestate):
            state.OBJECT_PUSH_SESSION_TTL_SECONDS = number
        from flwr.superlink.cli import flower_superlink as main
    else:
        from flwr.supernode import start_client_internal
        from flwr.supernode.cli import flower_supernode as main

        uploads, whole = count(1), start_client_internal.push_object_contents_from_iterable

        def push(contents, push_object_fn):
            if next(uploads) < number:
                return whole(contents, push_object_fn=push_object_fn)
            push_object_fn(*next(contents))
            os.kill(os.getpid(), signal.SIGKILL)

        start_client_internal.push_object_contents_from_iterable = push

    main()
