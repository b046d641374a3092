"""Ctrl-C at any moment of a training loop reaches the program, and costs it nothing afterwards."""

import json

from commands import python
from reading_packs import write_pack

# Sends itself SIGINT at random moments, each once the one before has been seen.
PROGRAM = """
import faulthandler, gc, json, os, random, signal, sys, threading, time, traceback
import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.finalizers import settle

faulthandler.dump_traceback_later(SECONDS, exit=True)
root, rounds, rng = ROOT, ROUNDS, random.Random(SEED)
lost_here, lost_elsewhere, seen = [], [], threading.Event()

def note(lost):
    places = traceback.extract_tb(lost.exc_traceback)
    text = f"{lost.exc_type.__name__} in {lost.object!r}: {[str(place) for place in places]}"
    ours = any("/sa1bpack/" in place.filename for place in places)
    (lost_here if ours else lost_elsewhere).append(text)
    seen.set()  # nobody else will see it

sys.unraisablehook = note

def send():
    for _ in range(rounds):
        time.sleep(rng.random() * rng.choice((0.001, 0.01, 0.05)))
        seen.clear()
        os.kill(os.getpid(), signal.SIGINT)
        if not seen.wait(60):
            lost_here.append("seen by nobody")
    ended.set()

ended = threading.Event()
ds = sa1bpack.open(root)
pipeline = T.Pipeline(ds, [T.RandomResizedCrop()], size=512)
loaders = [sa1bpack.Loader(ds, 2, threads=2, shuffle=True, io=io) for io in ("cached", "direct")]

def train():
    while not ended.is_set():
        for loader in loaders:
            held = []
            for batch in loader:
                pipeline(batch)
                held = [batch, *held[:1]]
        for batch in loaders[0]:
            break  # ends that iteration
        again = sa1bpack.open(root)
        again[0], again.column("area", "sum")
        for batch in sa1bpack.Loader(again, 4, threads=1):
            break
        copied = [loaders, again, batch]
        copied.append(copied)  # for the garbage collector

caught, news = 0, False
thread = threading.Thread(target=send)
going = True
while going:
    try:  # all that the next signal may interrupt
        if thread.ident is None:
            thread.start()
        if news:
            news = False
            seen.set()
        train()
        going = False
    except KeyboardInterrupt:
        caught, news = caught + 1, True
thread.join()
for loader in loaders:
    batches = [sorted(batch["indices"].tolist()) for batch in loader]
    assert sorted(sum(batches, [])) == list(range(len(ds))), batches
del batches
gc.collect()
settle()
left = [thread.name for thread in threading.enumerate() if "reader" in thread.name]
print(json.dumps({"caught": caught, "here": lost_here, "elsewhere": lost_elsewhere, "left": left}))
"""


def test_no_interrupt_is_lost_in_what_ends_with_an_object(torture, tmp_path):
    root = tmp_path / "pack"
    write_pack(root)
    rounds = torture.rounds(25, 2000)
    program = PROGRAM.replace("ROOT", repr(str(root))).replace("ROUNDS", str(rounds))
    program = program.replace("SEED", str(torture.seed)).replace("SECONDS", str(60 + rounds))
    found = json.loads(python("-c", program, timeout=90 + rounds).splitlines()[-1])
    assert found["here"] == [] and found["left"] == []
    assert found["caught"] + len(found["elsewhere"]) == rounds
