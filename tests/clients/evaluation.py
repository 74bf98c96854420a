"""Compares scores of lm-eval over HTTP with those of transformers on the same items: evaluation.py URL NAME.

Needs lm-eval with its extra `api`, and transformers for the tokenizer. The truth is `fixtures/evals`.
"""

import json
import sys
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
# Two f32 runs of a tiny model differ by this much for each token.
NOISE = 2e-5


def main(url, name):
    records = lambda kind: [json.loads(line) for line in open(FIXTURES / "evals" / f"{name}.{kind}.jsonl")]
    # The client puts BOS before every prompt, also before one that begins with it; transformers' class does not.
    pairs = [pair for pair in zip(records("tasks"), records("lm_eval")) if "already begun" not in pair[0]["prompt"]]
    items, truth = zip(*pairs)
    for batch, concurrent in [(1, 1), (16, 4)]:
        lm = LocalCompletionsAPI(
            base_url=f"{url}/v1/completions", model=name, tokenizer=str(FIXTURES / name), tokenizer_backend="huggingface",
            tokenized_requests=True, batch_size=batch, num_concurrent=concurrent, max_length=160,
            add_bos_token=True,
        )
        asked = [(item["prompt"], item["delimiter"] + choice) for item in items for choice in item["choices"]]
        found = lm.loglikelihood([Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(asked)])
        worst, flips = 0.0, 0
        for n, (number, greedy) in enumerate(found):
            want = truth[n // 4]
            tokens = len(lm.tok_encode(asked[n][1], add_special_tokens=False))
            off = abs(number - want["logprobs"][n % 4])
            worst = max(worst, off / tokens)
            assert off <= NOISE * tokens, f"item {n // 4}, choice {n % 4}: {number}, expected {want['logprobs'][n % 4]}"
            flips += greedy != want["greedy"][n % 4]
        assert flips == 0, f"{flips} answers are greedy in one program alone"
        again = lm.loglikelihood([Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(asked)])
        assert again == found, "the same requests have other scores"
        print(f"{name}: {len(found)} scores in batches of {batch}, {worst:.1e} from transformers for each token")
        if batch == 1:
            alone = found
        assert found == alone, "scores depend on the batch"
    text = lm.generate_until([Instance("generate_until", {}, ("the sky", {"until": ["e"], "max_gen_toks": 12, "temperature": 0}), 0)])
    print(f"{name}: generated {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
