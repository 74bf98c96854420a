#!/usr/bin/env python3
"""Runs the tests of `onboard bench` with transformers on torch: a test a line in, tokens per second a line out.

    onboard bench MODEL_DIR --against torch
    echo '{"prompt": 128, "generated": 0, "depth": 0, "batch": 1}' | python benches/torch_peer.py MODEL_DIR
"""
import argparse
import copy
import json
import sys
import time

import torch
import transformers


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--dtype", default="bf16", choices=["f32", "bf16", "f16"])
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    ap.add_argument("--compile", action="store_true", help="torch.compile, with a cache of fixed size")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    dtype = dict(f32=torch.float32, bf16=torch.bfloat16, f16=torch.float16)[args.dtype]
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval().to(args.device)
    vocab = model.config.get_text_config().vocab_size

    def tokens(count, batch):
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, vocab, (1, max(count, 1)), generator=generator).expand(batch, -1).to(args.device)

    def now():
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    # A prompt is compiled for each of its lengths, a step of decode once; both with CUDA graphs on a GPU.
    forward = torch.compile(model, mode="reduce-overhead", dynamic=False) if args.compile else model

    def feed(ids, cache):
        out = forward(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1:].argmax(-1)

    def empty(length):
        return transformers.StaticCache(config=model.config, max_cache_len=length) if args.compile else None

    filled = {}

    def run(prompt, generated, depth, batch):
        length = depth + max(prompt, 1) + generated
        cache = empty(length)
        if depth:
            if (depth, batch, length) not in filled:
                filled.clear()
                filled[depth, batch, length] = feed(tokens(depth, batch), cache)[0]
            cache = copy.deepcopy(filled[depth, batch, length])
        ids = tokens(prompt, batch)
        start = now()
        cache, token = feed(ids, cache)
        if not prompt:
            start = now()
        for _ in range(generated):
            cache, token = feed(token, cache)
        return (prompt + generated) * batch / (now() - start)

    with torch.inference_mode():
        for line in sys.stdin:
            print(run(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
