import sys, time
from tests.storage.crashing import *
from tests.storage import workloads
a,b=int(sys.argv[1]),int(sys.argv[2])
tot=0; t0=time.process_time()
for seed in range(a,b):
    w=World()
    try:
        workloads.Mixed(seed)(w)
    except Exception as e:
        import traceback; traceback.print_exc(limit=-5)
        print(seed, "PLAIN FAIL", e); continue
    c=Campaign()
    try:
        c.run(workloads.Mixed(seed))
    except Exception as e:
        print(seed, "FAIL", str(e)[:400])
    tot+=c.states
    print(seed, len(w.disk.operations), c.states, c.inside, flush=True)
print(tot, time.process_time()-t0)
