import time
T=["model=nano","length.new_tokens=8","timing=quick","device.threads=1"]
def test_a(bench, results):
    for args in (T, T, ["-m",*T,"batch=1,16","cache=none,rolling"]):
        t=time.time()
        r=bench(*args)
        with open("/tmp/probe.txt","a") as f: print(args, round(time.time()-t,2), r[0], r[1], r[2], sep="\n", file=f)
