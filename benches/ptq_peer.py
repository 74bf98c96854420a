#!/usr/bin/env python3
"""llm-compressor's `model_free_ptq` on a folder, as a process of its own, beside `convert --to fp8`.

    /usr/bin/time -v python benches/ptq_peer.py FOLDER OUT [SCHEME]

Prints the seconds of the call alone; the process (imports included) and its peak memory are `time`'s. What `convert`
keeps is ignored here too: the embedding, the head and the convolutions.
"""

import sys
import time

from llmcompressor import model_free_ptq

source, out, scheme = (*sys.argv[1:], "FP8_DYNAMIC")[:3]
started = time.perf_counter()
model_free_ptq(source, out, scheme=scheme, ignore=["lm_head", "re:.*embed_tokens", "re:.*conv.conv$"], max_workers=2, device="cpu")
print(f"seconds {time.perf_counter() - started:.2f}")
