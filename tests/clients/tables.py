"""Compares lm-eval's tables over HTTP with those of its own class for transformers: tables.py URL NAME.

Needs lm-eval with its extra `api`, torch and transformers. Every score has to be the same in the digits that lm-eval prints.
Tokenizers with tokens for single bytes are left out: bytes that form no character are decoded differently in a stream.
"""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
# Tokens that the fixtures take. Both classes have to be told: each has its own default, and longer texts are split there.
LENGTH = 160


def tasks(folder):
    """One task of each kind of request."""
    items = [json.loads(line) for line in open(FIXTURES / "evals" / "lfm2.tasks.jsonl")]
    # The two classes treat a prompt that begins with BOS differently.
    items = [item for item in items if "already begun" not in item["prompt"]]
    text = " ".join(f"{item['prompt']} {item['choices'][0]}" for item in items)
    items = [item | {"text": text[at : at + 90]} for at, item in zip(range(0, len(text), 90), items)]
    path = Path(folder) / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}
    return [
        data
        | {
            "task": "choices",
            "output_type": "multiple_choice",
            "doc_to_text": "{{prompt}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{target}}",
            "metric_list": [{"metric": metric} for metric in ("acc", "acc_norm")],
        },
        data
        | {
            "task": "texts",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": metric} for metric in ("byte_perplexity", "bits_per_byte")],
        },
        data
        | {
            "task": "answers",
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False, "temperature": 0},
            "metric_list": [{"metric": "chrf"}],
        },
    ]


def table(kind, **arguments):
    with tempfile.TemporaryDirectory() as folder:
        arguments |= {"add_bos_token": True, "max_length": LENGTH}
        found = lm_eval.simple_evaluate(
            model=kind, model_args=arguments, tasks=tasks(folder), batch_size=1, device="cpu", bootstrap_iters=0
        )
    return {
        f"{task} {metric}": f"{value:.4f}"
        for task, row in found["results"].items()
        for metric, value in row.items()
        if isinstance(value, float)
    }


def main(url, name):
    model = str(FIXTURES / name)
    want = table("hf", pretrained=model, dtype="float32")
    found = table(
        "local-completions", base_url=f"{url}/v1/completions", model=name, tokenizer=model, tokenizer_backend="huggingface",
        tokenized_requests=True, num_concurrent=4,
    )
    assert len(want) >= 5, want
    assert found == want, f"{found}\nexpected {want}"
    print(f"{name}: lm-eval prints the scores of transformers: {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
