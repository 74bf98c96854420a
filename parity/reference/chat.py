#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["transformers>=5.0", "jinja2>=3.1.6"]
# ///
"""Record how transformers renders chat templates and tokenizes texts (docs/chat.md).

    chat.py MODEL_DIR -o FILE.json                       the template and the tokenizer of a checkpoint
    chat.py --templates FOLDER --tokenizer DIR -o OUT    every *.jinja file of a folder, with one tokenizer

The files are read from local folders and nothing is fetched. Exit codes: 0 written, 2 could not run.
"""
from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

FORMAT, VERSION = "onboard-chat", 1
# `strftime_now` reads this time: a morning, with a day and a month of one digit.
NOW = datetime.datetime(2025, 6, 5, 9, 7, 3)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a city: <temperature> & \"sky\".",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "description": "Days ahead", "minimum": 0},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches documents.\nReturns at most ten.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filters": {
                    "type": "object",
                    "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "after": {"type": "string", "format": "date"}},
                    "additionalProperties": False,
                },
                "threshold": {"type": "number", "default": 0.5},
            },
            "required": ["query", "filters"],
        },
        "strict": True,
    },
}


def call(identity: str, name: str, arguments: dict) -> dict:
    """A call in OpenAI's form, in which arguments are JSON text."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


CONVERSATIONS = [
    {"name": "user", "messages": [{"role": "user", "content": "What is the capital of France?"}], "add_generation_prompt": True},
    {
        "name": "system",
        "messages": [{"role": "system", "content": "You are terse.\nAnswer in one word."}, {"role": "user", "content": "Hi <there> & \"you\" 'too'!"}],
        "add_generation_prompt": True,
    },
    {
        "name": "turns",
        "messages": [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "  and + 1?\n"},
            {"role": "assistant", "content": "\n 3 "},
            {"role": "user", "content": "Danke – 谢谢 🙏🏽"},
        ],
        "add_generation_prompt": True,
    },
    {
        "name": "closed",
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Ping"}, {"role": "assistant", "content": "Pong"}],
    },
    {
        "name": "tools",
        "messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather in Zürich?"}],
        "tools": [WEATHER, SEARCH],
        "add_generation_prompt": True,
    },
    {
        "name": "call",
        "messages": [
            {"role": "user", "content": "Weather in Zürich?"},
            {"role": "assistant", "content": None, "tool_calls": [call("call00001", "get_weather", {"city": "Zürich", "unit": "celsius", "days": 2})]},
            {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"sky\": \"clear\", \"t\": 21.5}"},
        ],
        "tools": [WEATHER],
        "add_generation_prompt": True,
    },
    {
        "name": "calls",
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather and news?"},
            {
                "role": "assistant",
                "content": "I look both up.",
                "reasoning_content": "Two calls are needed.",
                "tool_calls": [
                    call("call00001", "get_weather", {"city": "Bern", "days": None}),
                    call("call00002", "search", {"query": "news \"today\"", "filters": {"tags": ["a", "b'c"], "new": True}, "threshold": 0.25}),
                ],
            },
            {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "rain"},
            {"role": "tool", "tool_call_id": "call00002", "name": "search", "content": "no <news>"},
            {"role": "assistant", "content": "It rains."},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [WEATHER, SEARCH],
        "add_generation_prompt": True,
    },
    {
        "name": "reasoning",
        "messages": [
            {"role": "user", "content": "6 * 7?"},
            {"role": "assistant", "reasoning_content": "Six sevens.\nForty-two.", "content": "42"},
            {"role": "user", "content": "And half of it?"},
            {"role": "assistant", "content": "<think>\nHalf of 42.\n</think>\n\n21"},
            {"role": "user", "content": "Sure?"},
        ],
        "add_generation_prompt": True,
        "variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    },
    {
        "name": "no-reasoning",
        "messages": [{"role": "system", "content": "Be brief. /no_think"}, {"role": "user", "content": "6 * 7?"}],
        "add_generation_prompt": True,
        "variables": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    },
    {
        "name": "continued",
        "messages": [{"role": "user", "content": "Name three colours."}, {"role": "assistant", "content": "Red, green and "}],
        "continue_final_message": True,
    },
    {
        "name": "parts",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Answer in parts."}]},
            {"role": "user", "content": [{"type": "text", "text": "First. "}, {"type": "text", "text": "Second?"}]},
        ],
        "add_generation_prompt": True,
    },
    {
        "name": "documents",
        "messages": [{"role": "user", "content": "What do the documents say?\r\nTab\there, {{ braces }} and {% tags %}."}],
        "documents": [{"title": "One", "text": "Water boils at 100 °C.", "rank": 1e-7}, {"title": "Two", "text": "Ice is <cold>.", "rank": 12345678901234567890}],
        "add_generation_prompt": True,
        "variables": {"custom": {"a": [1, 2.0, None, True, "it's"], "b": 1e22}},
    },
]

# Texts for the tokenizer: composition, blanks, bytes, symbols, languages.
CORPUS = [
    "",
    " ",
    "Hello, world!",
    " leading blank",
    "  two leading blanks",
    "trailing blank ",
    "a\tb\nc\r\nd\n\n\ne",
    "   \n  \t ",
    "caf\u00e9 cafe\u0301 \u212b \ufb01",
    "don't I'LL we've",
    "0123456789 3.14159 1,000,000 x2y3",
    "snake_case camelCase kebab-case __init__ a/b\\c",
    "if (x >= 10 && y != 0) { return x << 2; } // ok",
    "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed",
    "\u0000\u0001\u001b[0m\u007f\u0085\u200b\ufeff\u202e",
    "Grüße aus Zürich, ß und ẞ",
    "Привет, как дела? Съешь же ещё",
    "你好,世界。今天天气怎么样?",
    "こんにちは、世界。カタカナと漢字",
    "안녕하세요 세계",
    "مرحبا بالعالم، كيف الحال؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "Xin chào thế giới",
    "Γειά σου Κόσμε",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U00020000 \ue000",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|>user\n<s>[INST]</s><|endoftext|>",
]


class Fail(Exception):
    """A problem the caller can act on; printed without a traceback."""


def for_template(messages: list[dict]) -> list[dict]:
    """Messages with the arguments of calls as objects, as servers hand them to templates."""
    made = []
    for message in messages:
        message = dict(message)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**one, "function": {**one["function"], "arguments": json.loads(one["function"]["arguments"] or "{}")}} for one in message["tool_calls"]
            ]
        made.append(message)
    return made


def stop_clock() -> None:
    """Let `strftime_now` read a fixed time."""
    from transformers.utils import chat_template_utils

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    chat_template_utils.datetime = Stopped


def rendering(tokenizer, conversation: dict, template: str | None = None) -> dict:
    """The text of a conversation and its tokens, or the reason why there is none."""
    import jinja2

    made = {"conversation": conversation["name"]}
    try:
        text = tokenizer.apply_chat_template(
            for_template(conversation["messages"]),
            tools=conversation.get("tools"),
            documents=conversation.get("documents"),
            chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", False),
            continue_final_message=conversation.get("continue_final_message", False),
            tokenize=False,
            **conversation.get("variables", {}),
        )
    except Exception as error:
        # Only `raise_exception` raises the plain class.
        raised = type(error) is jinja2.exceptions.TemplateError
        return made | {"error": str(error) if raised else f"{type(error).__name__}: {error}"[:300], "raised": raised}
    return made | {"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]}


def load_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise Fail(f"{folder}: transformers cannot load the tokenizer: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


def heading() -> dict:
    from importlib import metadata

    packages = {name: metadata.version(name) for name in ("transformers", "jinja2", "tokenizers")}
    return {"format": FORMAT, "version": VERSION, "producer": packages, "now": NOW.isoformat()}


def record(folder: Path) -> dict | None:
    """The record of a checkpoint; none if it has no tokenizer."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")):
        return None
    tokenizer = load_tokenizer(folder)
    stop_clock()
    texts = list(CORPUS)
    for token in sorted(tokenizer.added_tokens_decoder)[:64]:
        word = str(tokenizer.added_tokens_decoder[token])
        texts += [f"a{word}b", f" {word} {word}\n"]
    template = tokenizer.chat_template
    named = template if isinstance(template, dict) else {"default": template} if template else {}
    made = heading() | {"tokens": tokenizer.special_tokens_map, "templates": named, "conversations": [], "renderings": [], "corpus": []}
    if named:
        made["conversations"] = CONVERSATIONS
        made["renderings"] = [rendering(tokenizer, conversation) for conversation in CONVERSATIONS]
    for text in texts:
        made["corpus"].append({"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"], "prompt": tokenizer(text)["input_ids"]})
    return made


def templates(folder: Path, tokenizer_folder: Path, out: Path) -> int:
    """Renders the conversations with each template of a folder. Returns the number of templates."""
    tokenizer = load_tokenizer(tokenizer_folder)
    stop_clock()
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.rglob("*.jinja"))
    (out / "conversations.json").write_text(dumped(heading() | {"tokens": tokenizer.special_tokens_map, "conversations": CONVERSATIONS}), encoding="utf-8")
    for path in files:
        name = path.relative_to(folder).as_posix().replace("/", "__").removesuffix(".jinja")
        template = path.read_text(encoding="utf-8")
        made = {
            "template": path.relative_to(folder).as_posix(),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "renderings": [rendering(tokenizer, conversation, template) for conversation in CONVERSATIONS],
        }
        (out / f"{name}.json").write_text(dumped(made), encoding="utf-8")
    return len(files)


def dumped(value: dict) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="chat.py", description="Record how transformers renders chat templates and tokenizes texts.")
    parser.add_argument("model", metavar="MODEL_DIR", nargs="?", help="folder of a checkpoint")
    parser.add_argument("-o", "--out", required=True, help="file to write, or folder with --templates")
    parser.add_argument("--templates", metavar="FOLDER", help="folder of *.jinja files instead of a checkpoint")
    parser.add_argument("--tokenizer", metavar="DIR", help="with --templates: folder of the tokenizer, for special tokens and ids")
    args = parser.parse_args(argv)
    try:
        if args.templates:
            if not args.tokenizer:
                parser.error("--templates needs --tokenizer")
            count = templates(Path(args.templates), Path(args.tokenizer), Path(args.out))
            print(f"chat: {count} templates, {len(CONVERSATIONS)} conversations each", file=sys.stderr)
            return 0
        if not args.model:
            parser.error("give a checkpoint, or --templates")
        made = record(Path(args.model))
        if made is None:
            raise Fail(f"{args.model}: has no tokenizer")
        Path(args.out).write_text(dumped(made), encoding="utf-8")
    except Fail as error:
        print(f"chat: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
