"""A run that is killed anywhere goes on with the same command and ends with the weights of an undisturbed one."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from comem_cli.errors import FingerprintError
from comem_cli.model import load
from comem_cli.model.distill import Distillation
from comem_cli.model.distill_checkpoint import Checkpoint, RunFolder
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_sample import RECIPE
from tests.tiny import save_tiny

ROOT = Path(__file__).parents[2]
STEPS = 5
OPTIONS = DistillOptions(
    split=1, chunk=32, length=260, steps=STEPS, batch=2, rank=2, alpha=4, lr=0.01, warmup=1, device="cpu",
    dtype="fp32", eval_every=2, eval_packs=1, checkpoint_every=2, max_chunks=2, pack_positions=20,
    mix="continue=1,fact=1,question=1,chain=1,recite=1", parts=3, grow=7, gold=0.3, visits=2,
)  # fmt: skip
# Runs the job of the files beside it; where told, it kills itself with SIGKILL at a step and a moment.
JOB = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from comem_cli.model import distill, load
from comem_cli.model import distill_lesson, distill_options
from comem_cli.model.distill_options import DistillOptions
distill_options.POOL = distill_lesson.POOL = 4  # the run passes on to the next block
folder, out, options, moments = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
def on_step(done):
    if ["step", done] in moments:
        die()
import comem_cli.model.distill_checkpoint as checkpoint
whole = checkpoint.write_whole
def write_whole(path, content):
    step = int(path.parent.name.strip(".").split("-")[1].split(".")[0]) if "step-" in path.parent.name else 0
    if ["save", step] in moments:
        die()
    whole(path, content)
checkpoint.write_whole = write_whole
files = load.resolve(str(folder / "tiny"))
job = distill.Distillation([folder / "docs"], files, out, DistillOptions(**options))
job.run(lambda event: None, on_step, lambda: None)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    save_tiny(folder / "tiny", layers=3, initializer_range=0.1)
    (folder / "docs").mkdir()
    rng = random.Random(0)
    words = ["harbour", "master", "ledger", "vessel", "basin", "dawn", "dusk", "cargo", "draught"]
    for number in range(2):
        sentences = [" ".join(rng.choices(words, k=8)).capitalize() + "." for _ in range(60)]
        (folder / "docs" / f"{number}.txt").write_text(" ".join(sentences))
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder):
    assert job(folder, "calm").returncode == 0
    return load_file(str(folder / "calm" / "adapter_model.safetensors"))


def job(folder, out, moments=(), command=(), **changed):
    """Run the job in a process of its own."""
    options = json.dumps({**OPTIONS.to_dict(), **changed})
    line = [*(command or [sys.executable]), "-c", JOB] if not command else [*command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COMEM_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    arguments = [str(folder), str(folder / out), options, json.dumps(list(moments))]
    return subprocess.run([*line, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_a_killed_run_ends_with_the_same_weights_bit_for_bit(folder, undisturbed):
    """Killed after a step without a checkpoint, while a checkpoint is written, and right after one."""
    for moment in (["step", 3], ["save", 4], ["step", 5]):
        assert job(folder, "killed", [moment]).returncode == -signal.SIGKILL
        assert not (folder / "killed" / "comem.json").exists()
    done = job(folder, "killed")
    assert done.returncode == 0, done.stderr
    weights = load_file(str(folder / "killed" / "adapter_model.safetensors"))
    assert weights.keys() == undisturbed.keys()
    assert all(torch.equal(weights[name], undisturbed[name]) for name in weights)
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if ".lora_B." in name)
    calm, killed = (json.loads((folder / name / "comem.json").read_bytes()) for name in ("calm", "killed"))
    assert killed["history"] == calm["history"]
    assert killed == calm


def test_two_processes_train_as_one_does(folder, undisturbed, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    done = job(folder, "two", command=[sys.executable, *launch])
    assert done.returncode == 0, done.stderr[-2000:]
    weights = load_file(str(folder / "two" / "adapter_model.safetensors"))
    for name, weight in undisturbed.items():
        assert torch.allclose(weights[name], weight, atol=1e-4), name
    assert json.loads((folder / "two" / "comem.json").read_bytes())["computed"]["processes"] == 2


def test_a_later_checkpoint_replaces_the_one_before(tmp_path):
    runs = RunFolder(tmp_path)
    assert runs.latest() is None
    for step in (9, 10, 100):
        runs.save(Checkpoint(step, {"w": torch.full((2,), float(step))}, {"history": [step]}))
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
        found = runs.latest()
        assert found is not None
        assert (found.step, found.facts) == (step, {"history": [step]})
        assert torch.equal(found.tensors["w"], torch.full((2,), float(step)))
    (tmp_path / "checkpoints" / ".step-0000200.part").mkdir()  # what a killed process leaves
    found = runs.latest()
    assert found is not None and found.step == 100


def test_no_run_goes_on_with_the_samples_of_another_recipe(folder, tmp_path):
    files = load.resolve(str(folder / "tiny"))
    for earlier in (1, None):  # None: before recipes had numbers
        out = tmp_path / str(earlier)
        out.mkdir()
        run = Distillation([folder / "docs"], files, out, OPTIONS)._run()
        (out / "run.json").write_text(json.dumps({**run, "recipe": earlier}))
        with pytest.raises(FingerprintError, match=f"recipe {earlier}, not {RECIPE}"):
            Distillation([folder / "docs"], files, out, OPTIONS).run(lambda _: None, lambda _: None, lambda: None)


def test_an_interruption_leaves_the_last_checkpoint(folder, tmp_path):
    def interrupt(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    files = load.resolve(str(folder / "tiny"))
    job = Distillation([folder / "docs"], files, tmp_path / "a", OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        job.run(lambda event: None, interrupt, lambda: None)
    found = RunFolder(tmp_path / "a").latest()
    assert found is not None and found.step == 2
    started = []
    job.run(lambda event: None, started.append, lambda: None)
    assert started == [2, 3, 4, 5]
