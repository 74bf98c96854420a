"""Classes that a config names: of transformers, of files that are imported, and of the checkpoint."""
from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from .failures import PACKAGE, PROGRAM, Fail, at, first_line


def torch_dtype(name: str):
    import torch

    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]


def load_config(folder: Path, raw: dict, trust: bool):
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    path = folder / "config.json"
    brings = raw.get("auto_map") if isinstance(raw.get("auto_map"), dict) else {}
    if brings and not trust:
        hint = ("; the checkpoint brings code of its own (auto_map): read it, and give --trust-remote-code to run it; or, if a class of transformers is its equal, copy the "
                "folder with that class's `model_type` in config.json and without `auto_map`, and dump the copy")
    elif brings and "AutoModelForCausalLM" not in brings:
        hint = "; its `auto_map` names no AutoModelForCausalLM: add the class, or give the file that has it with --import FILE.py"
    else:
        hint = "; if the class is one of your own, give the file that has it with --import FILE.py"
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    except Exception as error:
        raise Fail(f"{path}: transformers cannot read it: {first_line(error)}{hint}") from None
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or wrapper(config) is not None
    if not known and not (trust and "AutoModelForCausalLM" in brings):
        raise Fail(f"{path}: model_type {config.model_type!r} has no causal language model in transformers{hint}")
    return config


def wrapper(config):
    """The class that puts encoders beside a text model, if the config is of one. It computes text alone as the text model does."""
    import transformers

    if config.get_text_config(decoder=True) is config:
        return None
    return next((found for name in config.architectures or [] if (found := getattr(transformers, name, None)) is not None), None)


def reader(config):
    """The function that reads a checkpoint of this config. For a wrapper it is the one of all classes, since one of the class may want files besides weights."""
    from transformers import AutoModelForCausalLM, PreTrainedModel

    found = wrapper(config)
    return AutoModelForCausalLM.from_pretrained if found is None else functools.partial(PreTrainedModel.from_pretrained.__func__, found)


def speaking(model):
    """The part of a model that computes logits: a class without a forward of its own leaves that to the model that it calls its thinker."""
    import torch

    return model if type(model).forward is not torch.nn.Module.forward else getattr(model, "thinker", model)


def text_part(model) -> tuple[str, str] | None:
    """The text model of a wrapper, and its name without the wrapper."""
    config = getattr(model, "config", None)
    if config is None or config.get_text_config(decoder=True) is config:
        return None
    for path in ("language_model", "text_model", "model.language_model", "model.text_model", "thinker.model"):
        try:
            module = model.get_submodule(path)
        except AttributeError:
            continue
        return (path, "") if hasattr(module, "lm_head") else (path, "model")
    return None


def embedding_rows(model, vocab: int | None, notes: list[str]) -> int:
    """How many tokens the model can embed. Classes may lack `get_input_embeddings`; then the config's vocabulary is believed."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except Exception as error:
        if vocab is None:
            raise Fail(f"the class {type(model).__name__} has no usable get_input_embeddings ({first_line(error)}) and its config no vocab_size; "
                       "give it one of them, so that prompts can be chosen") from None
        notes.append(f"the class {type(model).__name__} has no get_input_embeddings: prompts are chosen by vocab_size")
        return vocab


def import_files(paths: list[str], raw: dict) -> None:
    """Imports files with classes of the user's. A class that config.json names and the file does not register is registered here."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

    for text in paths:
        path = Path(text).resolve()
        if not path.is_file() or path.suffix != ".py":
            raise Fail(f"--import {text}: expected a Python file")
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            continue
        if loaded is not None:
            raise Fail(f"--import {text}: a module `{path.stem}` is loaded already; give the file another name")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise Fail(f"--import {text}: the file cannot be imported: {first_line(error)}{at(error)}") from None
        for name in raw.get("architectures") or []:
            found = getattr(module, str(name), None)
            if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
                continue
            config_class = found.config_class
            if not isinstance(config_class, type) or not issubclass(config_class, PreTrainedConfig):
                raise Fail(f"--import {text}: the class {name} has no `config_class`; set it to the class of its config")
            try:
                if config_class.__module__ == path.stem:
                    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
                AutoModelForCausalLM.register(config_class, found, exist_ok=True)
            except ValueError as error:
                raise Fail(f"--import {text}: {first_line(error)}") from None


def own_code(imports: list[str], trust: bool) -> dict | None:
    """What of the reference is not transformers' own: the files that were imported, and those that the checkpoint brings, with their hashes."""
    if not imports and not trust:
        return None
    folders = {Path(text).resolve().parent for text in imports}
    paths = {Path(text).resolve() for text in imports}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # Some modules of torch have a relative name of a file that is not there.
        if not file or not file.endswith(".py") or not os.path.isabs(file) or not os.path.isfile(file):
            continue
        if name.startswith("transformers_modules.") or Path(file).resolve().parent in folders:
            paths.add(Path(file).resolve())
    paths = {path for path in paths if path != PROGRAM.resolve() and path.parent != PACKAGE.resolve()}
    # Packages of remote code have empty `__init__.py`s.
    files = sorted({(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths if path.stat().st_size})
    return {"trust_remote_code": trust, "imports": [Path(text).name for text in imports], "files": [{"file": name, "sha256": digest} for name, digest in files]}
