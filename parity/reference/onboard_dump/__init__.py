"""Reference dumps of causal language models, made with Hugging Face code: docs/dump.md. `dump.py` runs it, and engines read taps and states by it.

`command.main` reads the options, and `dump_steps.dump` makes one dump: `inputs` reads the checkpoint, `run` runs the model in one dtype, `results` writes the files.
`trace_steps.write_trace` writes a record of what a class computes instead.
Modules import torch and transformers where they need them, so that a missing package can be named. Only `idle`, `trace` and `symbols`, and `weights`, `store`,
`layers`, `cache_steps` and `lockstep` for models whose weights are read when they are used, import torch at once, and are imported when they are needed.
"""
import os

# Before torch and transformers are imported, which read these then.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Large pages for tensors of 2 MB and more. A run of one layer at a time makes each weight anew, and most of its time was spent on page faults.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# The names that engines and other programs use.
from .checkpoint import hash_weights, safetensors_entries
from .classes import reader, speaking, torch_dtype, wrapper
from .command import main
from .failures import Fail
from .files import sealed
from .runner import Runner
from .states import conv_widths, read_states
from .taps import Taps

__all__ = ["Fail", "Runner", "Taps", "conv_widths", "hash_weights", "main", "read_states", "reader", "safetensors_entries", "sealed", "speaking", "torch_dtype", "wrapper"]
