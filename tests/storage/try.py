import sys, time
from tests.storage.crashing import *
from tests.storage import workloads
for name in sys.argv[1:] or workloads.ALL:
    t=time.process_time()
    w=World()
    try:
        workloads.ALL[name](w)
    except Exception as e:
        import traceback; traceback.print_exc(limit=6)
        print(name, "PLAIN FAIL", e); continue
    ops=len(w.disk.operations)
    c=Campaign()
    try:
        c.run(workloads.ALL[name])
    except Exception as e:
        print(name, "FAIL", str(e)[:600])
        if "-v" in sys.argv: raise
    print(name, ops, c.states, c.inside, round(time.process_time()-t,1), flush=True)
