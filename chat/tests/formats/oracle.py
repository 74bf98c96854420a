"""The tool-call parsers of vLLM and SGLang, imported from their wheels without the rest of the packages."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path


class Anything:
    """Stands in for any class of the rest of the package: keeps its keyword arguments as attributes."""

    def __init__(self, *args, **kwargs):
        self.__dict__.update(kwargs)

    def __class_getitem__(cls, item):
        return cls

    def __call__(self, *args, **kwargs):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __bool__(self):
        return False

    def __or__(self, other):
        return self

    __ror__ = __or__


class Record:
    """Stands in for a message of the protocol: attributes that were not given are None."""

    def __init__(self, **given):
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__") or name.startswith("model_"):
            raise AttributeError(name)
        return None

    def model_dump(self, **_):
        return dict(self.__dict__)


class StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith(("Delta", "Function", "ToolCall", "Extracted")):
            made = type(name, (Record,), {})
        elif name[0].isupper() and not name.startswith("VLLM_"):
            made = type(name, (Anything,), {})
        elif name == "init_logger":
            import logging

            made = logging.getLogger
        elif name in ("make_tool_call_id", "random_uuid"):
            made = lambda *a, **k: "id"
        elif name == "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS":
            made = 0.2
        elif name in ("is_mistral_tokenizer",):
            made = lambda *a, **k: False
        else:
            made = Anything()
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the named files of the wheels, and stubs for everything else of the two packages."""

    real = (
        "vllm.tool_parsers", "vllm.parser", "vllm.reasoning",
        "sglang.srt.function_call", "sglang.srt.parser",
    )

    def __init__(self, root):
        self.root = Path(root)

    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in ("vllm", "sglang", "xgrammar", "llguidance", "torch", "prometheus_client"):
            return None
        if any(name == real or name.startswith(real_ + ".") for real in self.real for real_ in (real,)):
            base = self.root.joinpath(*name.split("."))
            if (base / "__init__.py").is_file():
                return importlib.util.spec_from_file_location(
                    name, base / "__init__.py", submodule_search_locations=[str(base)])
            if base.with_suffix(".py").is_file():
                return importlib.util.spec_from_file_location(name, base.with_suffix(".py"))
            if base.is_dir():
                spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
                spec.submodule_search_locations = [str(base)]
                return spec
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


def install(root):
    sys.meta_path.insert(0, Finder(root))


class Tokenizer:
    """A tokenizer with the special tokens that parsers ask for."""

    all_special_tokens = ()
    all_special_ids = ()
    # Suffix of the marks of Hy3, which its parser reads.
    init_kwargs = {"token_suffix": ":opensource"}

    def __init__(self, lacks=()):
        self.vocab = {}
        self.lacks = lacks

    def get_vocab(self):
        return KeyedVocab(self.vocab, self.lacks)

    def encode(self, text, **_):
        return [ord(c) for c in text]

    def decode(self, ids, **_):
        return "".join(chr(i) for i in ids)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class KeyedVocab(dict):
    def __init__(self, vocab, lacks):
        super().__init__(vocab)
        self.source = vocab
        self.lacks = lacks

    def get(self, key, default=None):
        return self.source.setdefault(key, 200000 + len(self.source))

    def __contains__(self, key):
        return key not in self.lacks

    def __getitem__(self, key):
        return self.get(key)


def tool_objects(tools):
    made = []
    for tool in tools:
        function = types.SimpleNamespace(
            name=tool["name"], parameters=tool["parameters"], description="", strict=False)
        function.model_dump = lambda tool=tool: tool
        made.append(types.SimpleNamespace(type="function", function=function))
    return made


class SuffixedVocab:
    """A tokenizer whose marks have a suffix, as that of Hy3."""

    def get_vocab(self):
        names = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value", "think")
        return {f"<{name}:opensource>": at for at, name in enumerate(names)}


def sglang(module, cls, text, tools):
    made = getattr(importlib.import_module("sglang.srt.function_call." + module), cls)
    detector = made(SuffixedVocab()) if cls == "HunyuanDetector" else made()
    result = detector.detect_and_parse(text, tool_objects(tools))
    return {"content": result.normal_text or "",
            "calls": [[c.name, c.parameters] for c in result.calls]}


def melody(preset, text):
    """The reading of `cohere_melody`, which vLLM's parser of Cohere's models calls."""
    import cohere_melody

    filter_ = cohere_melody.PyFilter(getattr(cohere_melody.PyFilterOptions(), preset)())
    result = filter_.process_full_text(text)
    return {"content": result.content or "", "calls": [[c.name, c.arguments or "{}"] for c in result.tool_calls]}


def vllm(module, cls, text, tools, lacks=()):
    if module == "cohere_melody":
        return melody(cls, text)
    parser_class = getattr(importlib.import_module("vllm.tool_parsers." + module), cls)
    from openai.types.responses import FunctionTool

    class GivenTool(FunctionTool):
        """A tool in the form of both APIs of OpenAI."""

        @property
        def function(self):
            return self

    given = [GivenTool(type="function", name=t["name"], parameters=t["parameters"], strict=False) for t in tools]
    parser = parser_class(Tokenizer(lacks), given)
    request = types.SimpleNamespace(tools=given, tool_choice="auto", skip_special_tokens=False, include_reasoning=True, chat_template_kwargs={})
    result = parser.extract_tool_calls(text, request)
    return {"content": result.content or "",
            "calls": [[c.function.name, c.function.arguments] for c in result.tool_calls]}


def sglang_reasoning(cls, inside, text):
    detector = getattr(importlib.import_module("sglang.srt.parser.reasoning_parser"), cls)(force_reasoning=inside)
    result = detector.detect_and_parse(text)
    return [result.reasoning_text or "", result.normal_text or ""]


def vllm_reasoning(module, cls, inside, text):
    parser = getattr(importlib.import_module("vllm.reasoning." + module), cls)(Tokenizer())
    request = types.SimpleNamespace(tools=[], tool_choice="none", include_reasoning=True, chat_template_kwargs={})
    reasoning, content = parser.extract_reasoning(text, request)
    return [reasoning or "", content or ""]
