#!/usr/bin/env python3
"""The same rows as `onboard bench`, from transformers on torch, for BENCHMARKS.md.

    python benches/torch_peer.py MODEL_DIR [-p 128] [-n 32] [-r 3] [--dtype bf16] [--threads 2]
"""
import argparse
import resource
import statistics
import time

import torch
import transformers


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("-p", type=int, default=128)
    ap.add_argument("-n", type=int, default=32)
    ap.add_argument("-r", type=int, default=3)
    ap.add_argument("--dtype", default="bf16", choices=["f32", "bf16", "f16"])
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    dtype = dict(f32=torch.float32, bf16=torch.bfloat16, f16=torch.float16)[args.dtype]
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    vocab = model.config.vocab_size
    ids = torch.randint(0, vocab, (1, args.p), generator=torch.Generator().manual_seed(0))

    def prefill():
        start = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        return args.p / (time.perf_counter() - start)

    def decode():
        out = model(ids[:, :1], use_cache=True)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        start = time.perf_counter()
        for _ in range(args.n):
            out = model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        return args.n / (time.perf_counter() - start)

    with torch.inference_mode():
        for name, run in ((f"pp{args.p}", prefill), (f"tg{args.n}", decode)):
            run()
            rates = [run() for _ in range(args.r)]
            sd = statistics.stdev(rates) if len(rates) > 1 else 0.0
            print(f"| torch {torch.__version__} | {args.dtype} | {args.threads} | {name} | {statistics.mean(rates):.2f} ± {sd:.2f} |", flush=True)
    print(f"peak resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
